"""The command of a chaos run: the arguments that it refuses before it starts anything."""

import pytest

from chaos.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "'0' is not a whole number above 0"),
        (["--jobs", "many"], "'many' is not a whole number above 0"),
        (["--seed", "-1"], "'-1' is not a whole number, at least 0"),
        (["--minutes", "0"], "'0' is not a number above 0"),
        (["--minutes", "nan"], "'nan' is not a number above 0"),
        (["--minutes", "inf"], "'inf' is not a number above 0"),
        (["--kills", "-3"], "'-3' is not a whole number, at least 0"),
        (["--patience", "-1"], "'-1' is not a number above 0"),
        (["--kinds", "nap", "trap"], "invalid choice: 'trap'"),
        (["--killed", "moon"], "invalid choice: 'moon'"),
        (["--prove", "luck"], "there is no guard 'luck'; there are: dispatch lock, one open item"),
    ],
)
def test_nonsense_is_refused_in_words(arguments, words, capsys, monkeypatch):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
