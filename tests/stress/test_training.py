"""Runs of the main job that are killed again and again."""

import pytest
from killed_runs import assert_survives_kills
from training_runs import text_in

KILLS = 20


@pytest.mark.share(2)
def test_run_killed_twenty_times_ends_bit_identically(trial, tmp_path):
    text = text_in(tmp_path)
    for number in trial.rounds():
        folder = tmp_path / str(number)
        folder.mkdir()
        killed = assert_survives_kills(text, folder, KILLS, trial.rng, steps=1000)
        assert killed == KILLS
        trial.count(kills=killed)
