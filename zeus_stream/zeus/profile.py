"""Profiles of a function in a thermally stable state, with Zeus's names."""

from zeus_stream.zeus.replaced import replaced

_WINDOWS = (
    "Put `with zeus_stream.window('name') as w:` around the calls: short windows have bounds that show when"
    " they are long enough (docs/how-to/measure-a-script.md)."
)
measure = replaced("measure", _WINDOWS)
profile_parameters = replaced("profile_parameters", _WINDOWS)
profile_measurement_duration = replaced("profile_measurement_duration", _WINDOWS)
profile_cooldown_duration = replaced("profile_cooldown_duration", _WINDOWS)
TrialResult = replaced("TrialResult", _WINDOWS)
SweepResult = replaced("SweepResult", _WINDOWS)
SweepReport = replaced("SweepReport", _WINDOWS)
