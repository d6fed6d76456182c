from pathlib import Path

import pytest

from zeus_stream.config import Settings, load
from zeus_stream.errors import SettingsError


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "zeus-stream.toml"


def test_flags_win_over_environment_over_file_over_defaults(toml: Path) -> None:
    toml.write_text('select = "energy"\nprofile_steps = 7\nwarmup_steps = 3\n')
    environ = {"ZEUS_STREAM_PROFILE_STEPS": "8", "ZEUS_STREAM_WARMUP_STEPS": "4", "HOME": "/"}
    settings = load({"warmup_steps": 5, "stride_w": None}, environ, toml)
    assert (settings.select, settings.profile_steps, settings.warmup_steps) == ("energy", 8, 5)
    assert settings.stride_w == Settings().stride_w


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('profile_steps = "many"', "zeus-stream.toml: profile_steps = 'many': expected a whole number"),
        ("profile_steps = 1.5", "expected a whole number"),
        ("profile_steps = true", "expected a whole number"),
        ("profile_steps = 0", "profile_steps = 0: expected 1 to 100000"),
        ('observe = "perhaps"', "observe = 'perhaps': expected true or false"),
        ("observe = 3", "expected true or false"),
        ("select = 5", "select = 5: expected a text"),
        ("archive = 5", "archive = 5: expected a path"),
        ('trust_uid = "me"', "expected whole numbers"),
        ("follow = 5600", "expected texts"),
        ("follow = [5600]", "expected texts"),
        ("colour = 1", "colour: there is no such setting. The settings are dir,"),
        ("select = ", "could not be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_key_and_cure(toml: Path, line: str, sentence: str) -> None:
    toml.write_text(line)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, toml)
    assert sentence in str(caught.value)
    assert toml.name in str(caught.value)


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="environment: observe = 'maybe'"):
        load({}, {"ZEUS_STREAM_OBSERVE": "maybe"})


def test_a_file_that_was_named_must_exist(toml: Path) -> None:
    with pytest.raises(SettingsError, match="could not be read"):
        load({}, {}, toml)


@pytest.mark.parametrize("given", ["gpu7:5600, /run/zeus-stream", ["gpu7:5600", "/run/zeus-stream"]])
def test_collectors_to_follow_are_a_list_or_a_text_with_commas(given: object) -> None:
    assert load({"follow": given}, {}).follow == ("gpu7:5600", "/run/zeus-stream")


@pytest.mark.parametrize("given", ["1000,1001", [1000, 1001]])
def test_users_are_a_list_or_a_text_with_commas(given: object) -> None:
    assert load({"trust_uid": given}, {}).trust_uid == (1000, 1001)
