import os
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from zeus_stream.errors import SettingsError
from zeus_stream.settings import Settings, load, read_back, spelled


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
        ("profile_steps = 0", "profile_steps = 0: expected 1 to 100,000"),
        ('observe = "perhaps"', "observe = 'perhaps': expected true or false"),
        ("observe = 3", "expected true or false"),
        ("select = 5", "select = 5: expected a text"),
        ("archive = 5", "archive = 5: expected a path"),
        ('trust_uid = "me"', "expected whole numbers"),
        ("follow = 5600", "expected texts"),
        ("follow = [5600]", "expected texts"),
        ("selct = 1", "no such setting. Did you mean select?"),
        ("colour = 1", "could not set colour: there is no such setting. The settings are dir,"),
        ("select = ", "could not read the settings"),
        ("budget_groups = 5", "budget_groups = 5: expected names, each with a list of hosts"),
        ("[budget_groups]\nrack1 = []", "expected names, each with a list of hosts, HOST:INDEXes or UUIDs"),
        ("[budget_groups]\nrack1 = [7]", "{'rack1': [7]}: expected names"),
        ('[budget_groups]\nrack1 = ["gpu7:first"]', "expected names"),
        ('[budget_groups]\nrack1 = ["gpu7", ""]', "expected names"),
        ('[budget_groups]\nrack1 = ["GPU-a:0"]', "expected names"),
        ('[budget_groups]\n"rack=1" = ["gpu7"]', "expected names"),
        ('[budget_groups.rack1]\nhosts = ["gpu7"]', "expected names"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_key_and_cure(toml: Path, line: str, sentence: str) -> None:
    toml.write_text(line)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, toml)
    assert sentence in str(caught.value)
    assert toml.name in str(caught.value)


@pytest.mark.parametrize("trap", ["fifo", "broken link", "of another user"])
def test_settings_that_lie_in_the_working_directory_neither_wait_nor_mislead(
    toml: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO held every command for ever, a broken link was read as no settings, and root obeyed anyone."""
    monkeypatch.chdir(toml.parent)
    if trap == "fifo":
        os.mkfifo(toml)
    elif trap == "broken link":
        toml.symlink_to("nowhere")
    else:
        toml.write_text("observe = true")
        monkeypatch.setattr(os, "geteuid", lambda: toml.stat().st_uid + 1)
        if not toml.stat().st_uid:
            os.chown(toml, 4001, -1)
    why = {"fifo": "no regular file", "broken link": "No such file", "of another user": "belongs to user"}
    with pytest.raises(SettingsError, match=f"could not read the settings: .*{why[trap]}.*--config"):
        load({}, {})


def test_a_misspelled_variable_is_refused_and_what_others_set_is_not() -> None:
    with pytest.raises(
        SettingsError, match=r"SELCT: there is no such variable. Did you mean ZEUS_STREAM_SEL"
    ):
        load({}, {"ZEUS_STREAM_SELCT": "energy"})
    load({}, {"ZEUS_STREAM_PORT_80_TCP": "1", "ZEUS_STREAM_SERVICE_HOST": "10.0.0.1", "ZEUS_STREAM_RUN": "a"})


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="environment: observe = 'maybe'"):
        load({}, {"ZEUS_STREAM_OBSERVE": "maybe"})


def test_a_file_that_was_named_must_exist(toml: Path) -> None:
    with pytest.raises(SettingsError, match="could not read the settings"):
        load({}, {}, toml)


@pytest.mark.parametrize("given", ["gpu7:5600, /run/zeus-stream", ["gpu7:5600", "/run/zeus-stream"]])
def test_collectors_to_follow_are_a_list_or_a_text_with_commas(given: object) -> None:
    assert load({"follow": given}, {}).follow == ("gpu7:5600", "/run/zeus-stream")


def test_groups_of_gpus_have_names(toml: Path) -> None:
    toml.write_text('[budget_groups]\nrack1 = ["gpu7", "gpu8:0"]\none = "GPU-5a1c"\n')
    expected = (("rack1", ("gpu7:all", "gpu8:0")), ("one", ("GPU-5a1c",)))
    assert load({}, {}, toml).budget_groups == expected
    text = "rack1=gpu7:all,gpu8:0; one=GPU-5a1c;"
    assert load({}, {"ZEUS_STREAM_BUDGET_GROUPS": text}).budget_groups == expected


@pytest.mark.parametrize("text", ["rack1", "=gpu7", "a=b=c", "rack1=gpu7,,gpu8"])
def test_groups_that_a_variable_does_not_spell_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"environment: budget_groups = .*: expected names"):
        load({}, {"ZEUS_STREAM_BUDGET_GROUPS": text})


names = st.from_regex(r"[\w.-][\w. -]{0,20}", fullmatch=True).map(str.strip)
gpus = st.from_regex(r"GPU-[\w-]{1,36}|[a-z][a-z0-9.-]{0,20}(:(\d{1,3}|all))?", fullmatch=True)


@pytest.mark.sweep
@drawn(st.dictionaries(names, st.lists(gpus, min_size=1, max_size=4), max_size=4), st.lists(gpus, max_size=3))
def test_settings_are_read_back_as_they_were_spelled(groups: dict[str, list[str]], follow: list[str]) -> None:
    settings = load({"budget_groups": groups, "follow": follow, "profile_steps": 7}, {})
    assert read_back(spelled(settings), "here") == settings
    assert read_back(spelled(settings) | {"of_another_version": "5000"}, "here") == settings


@pytest.mark.parametrize("given", ["1000,1001", [1000, 1001]])
def test_users_are_a_list_or_a_text_with_commas(given: object) -> None:
    assert load({"trust_uid": given}, {}).trust_uid == (1000, 1001)
