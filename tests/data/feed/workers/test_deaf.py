"""Signals to workers: a job's SIGTERM leaves them, the rank's ends them, whatever threads torch starts in them."""

import subprocess
import sys
import textwrap

# A rank on more than one core: torch has a pool of threads, which it makes anew in each worker, before all else there.
SCRIPT = """
    import multiprocessing, os, signal, time
    from multiprocessing.shared_memory import SharedMemory
    import torch

    from rankwise import Order
    from rankwise.data.samples import DatasetLoader
    from rankwise.world import World

    torch.set_num_threads(4)

    class Pids(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            if not index:  # starts Python's resource tracker where nobody has, which unblocks SIGTERM
                memory = SharedMemory(create=True, size=1)
                memory.close()
                memory.unlink()
            return torch.tensor([os.getpid(), len(os.listdir("/proc/self/task"))])

    def ended_by_rank(context):
        order = Order(24, batch_size=4, kind="sequential")
        loader = DatasetLoader(
            Pids(), order=order, num_workers=1, prefetch_factor=1, multiprocessing_context=context, world=World.single()
        )
        pids, most = set(), 0
        for (batch,) in loader:
            pids |= set(batch.data[:, 0].tolist())
            most = max(most, *batch.data[:, 1].tolist())
            for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):  # from another process than the rank
                assert os.spawnlp(os.P_WAIT, "kill", "kill", f"-{int(number)}", *map(str, pids)) == 0
        assert len(pids) == 1, pids
        (worker,) = (child for child in multiprocessing.active_children() if child.pid in pids)
        for _ in range(200):  # a signal that meets one like it on its way is lost: the kernel keeps one
            worker.terminate()
            worker.join(1)
            if worker.exitcode is not None:
                break
        assert worker.exitcode == 0, worker.exitcode
        return most

    def ended_other(context):
        other = multiprocessing.get_context(context).Process(target=time.sleep, args=(10_000,), daemon=True)
        other.start()
        other.terminate()
        other.join(200)
        assert other.exitcode == -signal.SIGTERM, other.exitcode

    if __name__ == "__main__":
        # fork first: no resource tracker runs yet
        print(*(ended_by_rank(context) for context in ("fork", "forkserver", "spawn")))
        ended_other("forkserver")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


def test_whatever_threads_a_worker_has(tmp_path):
    """A worker gives all batches under signals from elsewhere, in each way of starting; the rank ends it and others."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, tmp_path / "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # main, the two that watch, the queue's, the one that hands out files, and torch's three: these were the trouble
    assert min(map(int, done.stdout.split())) >= 6, done.stdout
