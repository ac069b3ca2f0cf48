"""A run's summary is written however the run ends, and hides no failure."""

import errno
import json
import signal

import pytest

from headrace.pipeline.errors import StageFailed
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.summary import summarised


class FullDisk(RunDirectory):
    def write_summary(self, summary, *, finished):
        raise OSError(errno.ENOSPC, "No space left on device")


def ending(directory, interrupted_by=None):
    def summarise():
        return {"interrupted_by": interrupted_by}

    return summarised(directory, summarise, lambda now: [], exit_deadline_seconds=60)


def written(directory):
    return json.loads((directory.path / "summary.json").read_text())


def test_a_run_has_come_to_its_end_without_an_error_and_without_a_signal(tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(KeyboardInterrupt), ending(directory):
        raise KeyboardInterrupt
    assert written(directory) == {"interrupted_by": None, "finished": False}
    with ending(directory, signal.SIGTERM.name):
        pass
    assert written(directory) == {"interrupted_by": "SIGTERM", "finished": False}
    with ending(directory):
        pass
    assert written(directory) == {"interrupted_by": None, "finished": True}


def test_a_summary_that_cannot_be_written_is_the_failure_of_a_run_that_went_well(tmp_path):
    failed = pytest.raises(StageFailed, match=r"stage 'observe' failed: .*No space left")
    with failed, ending(FullDisk(tmp_path)):
        pass


@pytest.mark.parametrize("error", [StageFailed("learner", OSError("lost")), KeyboardInterrupt()])
def test_a_summary_that_cannot_be_written_hides_no_other_failure(error, tmp_path):
    with pytest.raises(type(error)) as caught, ending(FullDisk(tmp_path)):
        raise error
    assert caught.value is error
