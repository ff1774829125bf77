"""Which processes of this machine are ranks."""

import os

from rankwise import vitals
from rankwise.diagnose.watch import jobs
from rankwise.vitals.recorder import Recorder


def test_a_rank_that_is_the_first_process_of_its_container(monkeypatch):
    """Its parent is not in the container: the kernel calls it 0."""
    monkeypatch.setattr(jobs, "parent_process", lambda _: 0)
    folder = vitals.make_folder()
    recorder = Recorder(folder, 0)
    try:
        assert os.getpid() in {vital.pid for job in jobs.running_jobs() for vital in job.ranks}
    finally:
        recorder.stop()
        vitals.remove_folder(folder)
