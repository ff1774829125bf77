"""Messages of launchers and of the rendezvous."""

from __future__ import annotations

from rankwise.diagnose.explain.message import ADVICE, CODE, END, NETWORK, ROOT, SETUP, Message

__all__ = ["MESSAGES"]

_HUB = "https://github.com/"

MESSAGES = (
    Message(
        slug="address-in-use",
        pattern=r"address already in use|Address already in use",
        meaning="A process wants to listen on a port that another one holds: two jobs of one machine with the same "
        "port (29500 is the default), or ranks of an earlier run that still live.",
        causes=("another job on this machine uses the port", "processes of an earlier run were left behind"),
        mends=("torchrun --standalone, or --rdzv-endpoint=localhost:0: a free port", "ss -ltnp | grep PORT: who"),
        source=_HUB + "om-ai-lab/VLM-R1/issues/289",
        sample="port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use.",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="missing-variable",
        pattern=r"environment variable (\w+) expected, but not set",
        literals=("expected, but not set",),
        meaning="init_process_group(init_method='env://') reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; a "
        "launcher sets them, plain `python train.py` does not.",
        causes=("started with python instead of a launcher", "a wrapper or container dropped the environment"),
        mends=("rankwise run train.py, or torchrun --nproc-per-node N train.py", "rankwise doctor: which are there"),
        source=_HUB + "meta-llama/llama/issues/391",
        sample="ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="clients-joined",
        pattern=r"Timed out after \d+ seconds waiting for (clients|workers)\. \d+/\d+ \w+ joined",
        literals=("Timed out after ",),
        meaning="The store on rank 0 listens, but not all ranks of the world size have come in time. The text counts "
        "the ranks and does not name them.",
        causes=(
            "a rank died before it joined: look for its traceback",
            "WORLD_SIZE is greater than the number of processes started",
            "a host cannot reach MASTER_ADDR:MASTER_PORT",
        ),
        mends=(
            "count the processes started per host",
            "nc -vz MASTER_ADDR MASTER_PORT while rank 0 waits",
        ),
        source=_HUB + "OpenRLHF/OpenRLHF/issues/1040",
        sample="torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients "
        "joined.",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="rendezvous-timeout",
        pattern=r"RendezvousTimeoutError",
        meaning="torchrun's agents did not reach the smallest number of nodes within the join timeout.",
        causes=("fewer nodes were started than --nnodes asks for", "different --rdzv-id or --rdzv-endpoint"),
        mends=("the same --nnodes, --rdzv-id and --rdzv-endpoint on all nodes", "--rdzv-conf join_timeout=SECONDS"),
        source=_HUB + "facebookresearch/av_hubert/issues/19",
        sample='"message": "RendezvousTimeoutError: ",',
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="rendezvous-connection",
        pattern=r"RendezvousConnectionError|The connection to the C10d store has failed",
        meaning="An agent cannot talk to the store of the c10d rendezvous, or can no longer.",
        causes=(
            "the agent that holds the store has ended or has not started",
            "--rdzv-endpoint names a host or an interface that others cannot reach",
            "a firewall",
        ),
        mends=("nc -vz HOST PORT while the first agent waits", "an address all hosts can reach"),
        source=_HUB + "pytorch/pytorch/issues/64926",
        sample='"message": "RendezvousConnectionError: The connection to the C10d store has failed. See inner '
        'exception for details.",',
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="rendezvous-closed",
        pattern=r"RendezvousClosedError",
        meaning="A node came to a rendezvous that was closed: the job is over for the others, and the id is spent.",
        causes=("another node has finished or given up", "a new start with the --rdzv-id of the last one"),
        mends=("look at the node that ended first", "a new --rdzv-id for each start"),
        source=_HUB + "pytorch/pytorch/issues/147064",
        sample="I was able to repro Case 1 (RendezvousClosedError) by running two agents on a single node.",
        rank_of_cause=END,
    ),
    Message(
        slug="name-unknown",
        pattern=r"gai error: -?\d+|Name or service not known",
        literals=("gai error: ", "Name or service not known"),
        meaning="The host name of the rendezvous has no address of this family here. For IPv6 alone it is a warning: "
        "IPv4 is tried next.",
        causes=("MASTER_ADDR is a name that this host's DNS and /etc/hosts do not know", "a host without IPv6"),
        mends=("an IP address as MASTER_ADDR", "getent hosts NAME on every host"),
        source=_HUB + "hpcaitech/ColossalAI/issues/2841",
        sample="[W socket.cpp:601] [c10d] The IPv6 network addresses of (i-7840df31, 37340) cannot be retrieved (gai "
        "error: -2 - Name or service not known).",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="store-unreachable",
        pattern=r"client socket has (failed to connect|timed out after)",
        literals=("client socket has ",),
        meaning="A rank cannot reach the store on MASTER_ADDR:MASTER_PORT. Single lines of it are normal while rank 0 "
        "still starts.",
        causes=("rank 0 has died or not started", "a wrong address or a filtered port", "a name without address"),
        mends=("nc -vz MASTER_ADDR MASTER_PORT while rank 0 waits: refused, or no answer", "read rank 0's log first"),
        source=_HUB + "meta-pytorch/torchx/issues/540",
        sample="[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of "
        "(codeflare-ray-jiajie-csqcn-head-sjvwx, 50176).",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="local-rank-argument",
        pattern=r"unrecognized arguments: .*--local[-_]rank",
        literals=("unrecognized arguments: ",),
        meaning="torch.distributed.launch hands --local-rank (--local_rank before 2.0) to the script, whose parser "
        "does not know it.",
        causes=("the script was written for the other spelling", "the script never had the argument"),
        mends=(
            "torchrun instead of python -m torch.distributed.launch, and int(os.environ['LOCAL_RANK'])",
            "rankwise rule local-rank-argparse",
        ),
        source=_HUB + "XPixelGroup/BasicSR/issues/626",
        sample="train.py: error: unrecognized arguments: --local-rank=0",
        rank_of_cause=CODE,
    ),
    Message(
        slug="launch-deprecated",
        pattern=r"module torch\.distributed\.launch is deprecated",
        meaning="A warning: torch.distributed.launch still works and will go; torchrun has replaced it.",
        causes=("an old command line",),
        mends=("torchrun with the same options; read LOCAL_RANK from the environment",),
        source=_HUB + "facebookresearch/detr/issues/578",
        sample="FutureWarning: The module torch.distributed.launch is deprecated",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="group-not-initialized",
        pattern=r"Default process group has not been initialized",
        meaning="A collective, get_rank() or the DDP constructor was called in a process without a process group.",
        causes=(
            "init_process_group was not called, or comes later",
            "started without the launcher option of the framework",
            "code at import time, or in a loader's worker, that asks for the rank",
        ),
        mends=("call init_process_group first", "guard with dist.is_initialized() where one process is allowed"),
        source=_HUB + "open-mmlab/mmsegmentation/issues/809",
        sample="RuntimeError: Default process group has not been initialized, please make sure to call "
        "init_process_group.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="group-twice",
        pattern=r"trying to initialize the default process group twice",
        meaning="init_process_group was called a second time in one process.",
        causes=("both the script and a framework initialise", "a loop or notebook cell that runs again"),
        mends=("if not dist.is_initialized(): ...", "leave it to one: the framework or the script"),
        source=_HUB + "intel/torch-xpu-ops/issues/1525",
        sample="ValueError: trying to initialize the default process group twice!",
        rank_of_cause=CODE,
    ),
    Message(
        slug="killed-by-signal-9",
        pattern=r"Signal 9 \(SIGKILL\) received|\(exitcode: -9\)|terminated with signal SIGKILL",
        meaning="A rank was killed from outside with SIGKILL; no Python code could tell why. On Linux it is nearly "
        "always the kernel for lack of host memory (not GPU memory).",
        causes=("host memory, or the limit of the container or job, is used up", "someone or a scheduler killed it"),
        mends=(
            "dmesg -T | grep -i 'killed process' on that host",
            "fewer loader workers, less prefetch; torch.load(..., mmap=True); more --mem",
            "rankwise run tells the kernel's reason",
        ),
        source=_HUB + "lzhxmu/CPPO/issues/6",
        sample="traceback : Signal 9 (SIGKILL) received by PID 14750",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="segmentation-fault",
        pattern=r"SIGSEGV|Segmentation fault",
        meaning="Native code of a rank accessed memory that it must not: no Python traceback is written.",
        causes=("libraries built for another torch, CUDA or NumPy", "a driver, extension or hardware fault"),
        mends=("PYTHONFAULTHANDLER=1: the Python stack of the crash", "a fresh environment with one torch"),
        source=_HUB + "yxlu-0102/MP-SENet/issues/7",
        sample="torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="aborted",
        pattern=r"terminated with signal SIGABRT|\(exitcode: -6\)|Signal 6 \(SIGABRT\)",
        meaning="A rank aborted itself: a C++ exception nobody caught. NCCL's watchdog ends ranks this way after a "
        "time-out, and gloo after a size mismatch.",
        causes=("a time-out or CUDA error that is told a few lines above", "collectives whose sizes differ"),
        mends=("read the last lines of that rank before the abort",),
        source=_HUB + "rshaojimmy/MultiModal-DeepFake/issues/24",
        sample="torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT",
        rank_of_cause=END,
    ),
    Message(
        slug="agent-sigterm",
        pattern=r"Sending process \d+ closing signal SIGTERM",
        literals=("closing signal SIGTERM",),
        meaning="torchrun ends the other ranks because one has failed: these ranks are not at fault.",
        causes=("the rank that torchrun names as first failure",),
        mends=("look at the ranks that are NOT in these lines",),
        source=_HUB + "hpcaitech/ColossalAI/issues/3677",
        sample="WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 1167 closing signal SIGTERM",
        rank_of_cause=END,
    ),
    Message(
        slug="rank-failed",
        pattern=r"failed \(exitcode: [1-9]\d*\) local_rank: \d+",
        literals=("failed (exitcode: ",),
        meaning="torchrun saw this local rank end with an error first; the reason stands in that rank's own output.",
        causes=("a Python exception in that rank, above in the log",),
        mends=(
            "torchrun --log-dir logs --tee 3: each rank's output with its number",
            "@torch.distributed.elastic.multiprocessing.errors.record on main(): the traceback in the summary",
        ),
        source=_HUB + "Facico/Chinese-Vicuna/issues/113",
        sample="ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 1622990) "
        "of binary: /home/changquan/anaconda3/envs/lang/bin/python",
        rank_of_cause=END,
    ),
    Message(
        slug="child-failed",
        pattern=r"ChildFailedError",
        meaning="torchrun's summary that ranks failed. `exitcode` and `rank` below it say which was first.",
        causes=("the first observed failure in the table below the line",),
        mends=("read `Root Cause (first observed failure)`, then that rank's output",),
        source=_HUB + "hpcaitech/ColossalAI/issues/3172",
        sample="raise ChildFailedError(",
        rank_of_cause=END,
    ),
    Message(
        slug="signal-to-agent",
        pattern=r"SignalException: Process \d+ got signal: \d+|Received \d+ death signal, shutting down workers",
        literals=("SignalException: Process", "death signal, shutting"),
        meaning="torchrun itself was told to end: 1 is a closed terminal (SIGHUP), 2 Ctrl-C, 15 a scheduler or kill. "
        "The ranks did nothing wrong. nohup does not help: the agent installs its own SIGHUP handler.",
        causes=("the terminal or ssh connection was closed (signal 1)", "a scheduler's preemption or time limit (15)"),
        mends=("start inside tmux, screen or a batch job", "setsid torchrun ... for a shell that may go"),
        source=_HUB + "zai-org/ChatGLM2-6B/issues/238",
        sample="torch.distributed.elastic.multiprocessing.api.SignalException: Process 8665 got signal: 1",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="slurm-out-of-memory",
        pattern=r"oom[-_]kill event",
        literals=("oom_kill", "oom-kill"),
        meaning="The job's memory limit in Slurm was reached, and the kernel killed a process of the step.",
        causes=("--mem is less than the ranks and their loader workers need", "memory that grows with each epoch"),
        mends=("--mem=0 (all of a node) or more; fewer workers", "sacct -j JOB --format=MaxRSS,ReqMem"),
        source=_HUB + "nextflow-io/nextflow/issues/5932",
        sample="slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0.",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="slurm-time-limit",
        pattern=r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        literals=("DUE TO TIME LIMIT",),
        meaning="Slurm ended the job at its time limit; the messages of ranks after this line are its echo.",
        causes=("--time is too short, or the job hung until then",),
        mends=(
            "rankwise run --slurm --requeue: saves before the limit and goes on in a new job",
            "#SBATCH --signal=B:USR1@300 and a handler that saves",
        ),
        source=_HUB + "ZettaAI/zetta_utils/issues/671",
        sample="slurmstepd: error: *** JOB 494583 ON ... CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
        rank_of_cause=ROOT,
    ),
)
