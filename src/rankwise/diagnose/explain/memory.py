"""Messages of data loaders, memory, GPUs and the environment."""

# ruff: noqa: S108  (paths in sentences; none is opened)

from __future__ import annotations

from rankwise.diagnose.explain.message import AFTER, CODE, DATA, ROOT, SETUP, Message

__all__ = ["MESSAGES"]

_HUB = "https://github.com/"

MESSAGES = (
    Message(
        slug="cuda-out-of-memory",
        pattern=r"CUDA out of memory|CUDA error: out of memory",
        meaning="A GPU has no memory left for this rank. The other ranks then hang in a collective until it times out.",
        causes=(
            "batch or sequence length too great; one long sample is enough",
            "another process, or several ranks, on this GPU",
            "torch.load without map_location fills GPU 0 from all ranks",
        ),
        mends=(
            "smaller micro-batches with accumulation, activation checkpointing, bfloat16",
            "nvidia-smi: who else is there; rankwise doctor",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where much is reserved and unallocated",
            "rankwise rule load-without-map-location",
        ),
        source=_HUB + "richard-peng-xia/MMed-RAG/issues/38",
        sample="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB.",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="loader-bus-error",
        pattern=r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) is killed by signal: Bus error|Unexpected bus error",
        literals=("killed by signal: Bus error", "Unexpected bus error"),
        meaning="A loader worker wrote to shared memory and /dev/shm was full.",
        causes=("/dev/shm of the container is 64 MB, Docker's default", "workers x prefetch_factor x batch too great"),
        mends=(
            "docker run --shm-size=16g or --ipc=host; an emptyDir of medium Memory on Kubernetes",
            "fewer workers or prefetch_factor; df -h /dev/shm",
        ),
        source=_HUB + "hkchengrex/STCN/issues/132",
        sample="RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="loader-killed",
        pattern=r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) is killed by signal: (Killed|Terminated)",
        literals=("killed by signal: Killed", "killed by signal: Terminated"),
        meaning="A loader worker was killed from outside: nearly always for lack of host memory.",
        causes=("host memory or the job's limit is used up; each rank has num_workers of them", "the job was ended"),
        mends=(
            "dmesg -T | grep -i 'killed process'",
            "fewer workers per rank; more --mem",
            "rankwise rule workers-per-rank",
        ),
        source=_HUB + "mittagessen/kraken/issues/266",
        sample="RuntimeError: DataLoader worker (pid 22048) is killed by signal: Killed.",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="loader-exited",
        pattern=r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        literals=("exited unexpectedly",),
        meaning="A loader worker has gone without a Python exception; the parent does not know why.",
        causes=("killed for memory, or a crash in native code of the dataset", "out of shared memory"),
        mends=("num_workers=0 once: the error itself", "PYTHONFAULTHANDLER=1; dmesg"),
        source=_HUB + "THU-DA-6D-Pose-Group/GDR-Net/issues/16",
        sample="RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly",
        rank_of_cause=DATA,
    ),
    Message(
        slug="too-many-files",
        pattern=r"received \d+ items of ancdata|Too many open files",
        literals=("items of ancdata", "Too many open files"),
        meaning="The limit of open files is reached: each tensor that a worker sends holds a descriptor.",
        causes=("ulimit -n of 1024 with many tensors per batch", "batches kept in a list", "files never closed"),
        mends=("ulimit -n 65536", "torch.multiprocessing.set_sharing_strategy('file_system')", "rankwise doctor"),
        source=_HUB + "Project-MONAI/MONAI/issues/701",
        sample="RuntimeError: received 0 items of ancdata",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="cuda-in-fork",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        meaning="A forked child, mostly a loader worker, used CUDA after its parent had.",
        causes=("a dataset, collate_fn or transform that makes CUDA tensors",),
        mends=("CPU tensors in the dataset, .to(device) in the loop", "multiprocessing_context='spawn'"),
        source=_HUB + "graphnet-team/graphnet/pull/614",
        sample="RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method",
        rank_of_cause=CODE,
    ),
    Message(
        slug="unguarded-main",
        pattern=r"An attempt has been made to start a new process before the",
        meaning="A spawned child imports the script, which starts children again: there is no main guard.",
        causes=("processes or loader workers are started at the script's top level",),
        mends=("if __name__ == '__main__': main()", "rankwise run or torchrun instead of mp.spawn"),
        source=_HUB + "guoyang9/BPR-pytorch/issues/1",
        sample="RuntimeError: An attempt has been made to start a new process before the current process has finished "
        "its bootstrapping phase.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="sampler-and-shuffle",
        pattern=r"sampler (option )?is mutually exclusive with shuffle",
        literals=("mutually exclusive with",),
        meaning="DataLoader got both sampler= and shuffle=True.",
        causes=("a DistributedSampler was added and shuffle=True was left",),
        mends=("shuffle=(sampler is None), and sampler.set_epoch(epoch)", "rankwise lint --fix train.py"),
        source=_HUB + "AgatheSenellart/MultiVae/issues/33",
        sample="ValueError: sampler option is mutually exclusive with shuffle",
        rank_of_cause=CODE,
    ),
    Message(
        slug="invalid-device",
        pattern=r"invalid device ordinal",
        meaning="A rank asked for a GPU that this process does not see.",
        causes=(
            "more ranks than visible GPUs",
            "the global rank as device index on the second host",
            "CUDA_VISIBLE_DEVICES",
        ),
        mends=(
            "--nproc-per-node = number of visible GPUs",
            "LOCAL_RANK as index: rankwise rule global-rank-as-device",
            "rankwise doctor: what each rank sees",
        ),
        source=_HUB + "microsoft/SimXNS/issues/2",
        sample="RuntimeError: CUDA error: invalid device ordinal",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="device-assert",
        pattern=r"device-side assert triggered",
        meaning="A kernel's check failed on this rank's GPU, mostly an index out of range. The traceback's line may be "
        "a later one; the process cannot go on with CUDA.",
        causes=("a label or token that is >= the number of classes or embeddings", "NaN where probabilities are asked"),
        mends=(
            "CUDA_LAUNCH_BLOCKING=1, or the same batch on the CPU: the right line",
            "check labels.max() in the data",
        ),
        source=_HUB + "taishan1994/qlora-chinese-LLM/issues/3",
        sample="RuntimeError: CUDA error: device-side assert triggered",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="illegal-memory-access",
        pattern=r"an illegal memory access was encountered",
        meaning="A kernel read or wrote outside its memory. The NCCL watchdog often tells it first; it is no cause.",
        causes=("a custom or compiled kernel", "libraries of another CUDA", "a GPU fault"),
        mends=(
            "CUDA_LAUNCH_BLOCKING=1; compute-sanitizer python train.py",
            "the same job on another GPU; dmesg: Xid",
        ),
        source=_HUB + "vllm-project/vllm/issues/4108",
        sample="[E ProcessGroupNCCL.cpp:916] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: an "
        "illegal memory access was encountered",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="ecc-error",
        pattern=r"uncorrectable ECC error encountered",
        meaning="The GPU's memory is at fault: hardware, not the script.",
        causes=("a failing GPU",),
        mends=("nvidia-smi -q -d ECC,ROW_REMAPPER; reset or drain the node", "exclude the host and resume"),
        source=_HUB + "tloen/alpaca-lora/issues/123",
        sample="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="no-kernel-image",
        pattern=r"no kernel image is available for execution on the device",
        meaning="torch, or an extension, was not built for this GPU's architecture.",
        causes=("a GPU newer or older than the build", "an extension compiled on another machine"),
        mends=("torch.cuda.get_arch_list() against get_device_capability()", "TORCH_CUDA_ARCH_LIST and build again"),
        source=_HUB + "MIC-DKFZ/nnUNet/issues/1040",
        sample="CUDA error: no kernel image is available for execution on the device.",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="driver-too-old",
        pattern=r"The NVIDIA driver on your system is too old",
        meaning="The driver of this host is older than torch's CUDA needs.",
        causes=("a node with another driver than the rest", "a torch that is newer than the driver"),
        mends=("nvidia-smi: the CUDA version it can do; a torch build for that one", "rankwise doctor on all hosts"),
        source=_HUB + "lllyasviel/Omost/issues/120",
        sample="RuntimeError: The NVIDIA driver on your system is too old (found version 11060).",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="nccl-symbol",
        pattern=r"undefined symbol: nccl\w+",
        literals=("undefined symbol: nccl",),
        meaning="torch loads an NCCL library that is older than the one it was built with.",
        causes=("another libnccl.so.2 in LD_LIBRARY_PATH or the environment", "packages of two CUDA versions mixed"),
        mends=("ldd .../torch/lib/libtorch_cuda.so | grep nccl", "unset LD_LIBRARY_PATH; a fresh environment"),
        source=_HUB + "pytorch/pytorch/issues/186591",
        sample="ImportError: /home/ti64cli/.env/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined "
        "symbol: ncclCommResume",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="store-connection",
        pattern=r"DistStoreError: Socket Timeout|error: Socket Timeout$",
        literals=("Socket Timeout",),
        meaning="A rank waited for a key of the store that another one should have set.",
        causes=("rank 0, or the rank that sets the key, has died or is late",),
        mends=("the first lines and the end of rank 0's log",),
        source=_HUB + "alibaba/Pai-Megatron-Patch/issues/468",
        sample="torch.distributed.DistStoreError: Socket Timeout",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="python-exception",
        pattern=r"^(?:[\w.]+\.)?(?!DistBackendError|DistNetworkError|DistStoreError|DistError)[A-Z]\w*(?:Error|Exception)"
        r": ",
        literals=("Error: ", "Exception: "),
        meaning="A Python exception that this catalogue does not know. An exception of one rank ends it, and the "
        "others wait for it in vain.",
        causes=("the script or data of that rank: the traceback above the line says where",),
        mends=("mend this first, before any time-out or closed connection",),
        source=_HUB + "OFA-Sys/Chinese-CLIP/issues/279",
        sample="EOFError: Ran out of input",
        rank_of_cause=CODE,
        fallback=True,
    ),
)
