"""Messages of NCCL, gloo and the process groups."""

# ruff: noqa: S108  (paths in sentences; none is opened)

from __future__ import annotations

from rankwise.diagnose.explain.message import ADVICE, AFTER, CODE, HANG, NETWORK, ROOT, SETUP, Message

__all__ = ["MESSAGES"]

_HUB = "https://github.com/"

MESSAGES = (
    Message(
        slug="watchdog-timeout",
        pattern=r"Watchdog caught collective operation timeout",
        meaning="A collective did not end within the group's timeout (10 minutes by default for NCCL). The ranks that "
        "say so waited; the culprit is often the one that is silent or has another SeqNum. NCCL_TIMEOUT and "
        "TORCH_NCCL_TIMEOUT do not exist: the timeout is an argument.",
        causes=(
            "a rank died, or is still in a long step such as saving, evaluating or tokenising",
            "ranks took different branches or have loaders of different length",
            "a link is down or very slow",
        ),
        mends=(
            "rankwise watch: which rank has not joined, in which line it is",
            "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, then torchfrtrace",
            "where the wait is meant: init_process_group(timeout=timedelta(hours=2))",
            "rankwise rule collective-in-rank-branch, rankwise rule rank-dependent-exit",
        ),
        source=_HUB + "hiyouga/LlamaFactory/issues/7396",
        sample="[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
        "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
        rank_of_cause=HANG,
    ),
    Message(
        slug="watchdog-work",
        pattern=r"detected by watchdog at work|failure detected by watchdog",
        meaning="The watchdog of this rank saw an error or time-out. `last completed` differing between ranks shows "
        "who is behind.",
        causes=("see the time-out or CUDA error beside it",),
        mends=("compare `last enqueued` and `last completed` of all ranks: the lowest one is behind",),
        source=_HUB + "XPixelGroup/BasicSR/issues/737",
        sample="[PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at "
        "work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="nccl-taking-down",
        pattern=r"Some NCCL operations have failed or timed out",
        meaning="After a failed collective the rank ends itself, because results would be wrong. It is the echo of "
        "the time-out or error above.",
        causes=("the time-out or error of the same rank, some lines above",),
        mends=("nothing here: mend the first failure",),
        source=_HUB + "NVIDIA/physicsnemo/issues/691",
        sample="[Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
        "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="heartbeat-monitor",
        pattern=r"Heartbeat monitor timed out",
        meaning="The watchdog thread itself made no progress: a CUDA or NCCL call blocks it, or another thread holds "
        "the GIL inside one. The process ends itself after a dump.",
        causes=("a GPU or link hangs", "a rank has died and NCCL waits for it", "a GIL held in native code"),
        mends=("rankwise watch: the stacks, also where the GIL is held", "nvidia-smi -q and dmesg on that host"),
        source=_HUB + "Intellindust-AI-Lab/DEIM/issues/105",
        sample="[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be "
        "terminated after dumping debug info. workMetaList_.size()=103",
        rank_of_cause=HANG,
    ),
    Message(
        slug="watchdog-stuck",
        pattern=r"ProcessGroupNCCL's watchdog got stuck",
        meaning="The end of a heartbeat time-out. Raising TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only helps where a call is "
        "slow, not where it hangs.",
        causes=("see the heartbeat message before it",),
        mends=("rankwise watch before the deadline", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800 for a slow first step"),
        source=_HUB + "facebookresearch/dinov2/issues/447",
        sample="[rank0]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 0] [PG 0 Rank 0] ProcessGroupNCCL's watchdog got "
        "stuck for 600 seconds without making progress in monitoring enqueued collectives.",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="duplicate-gpu",
        pattern=r"Duplicate GPU detected",
        meaning="Two ranks of one group use the same GPU; NCCL refuses that.",
        causes=(
            "no torch.cuda.set_device(LOCAL_RANK), so all ranks take GPU 0",
            "a fixed 'cuda:0', or CUDA_VISIBLE_DEVICES set to one GPU",
            "more ranks than GPUs",
        ),
        mends=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the group, or rankwise.bind()",
            "rankwise doctor: which ranks share a GPU",
            "rankwise rule no-set-device, rankwise rule hardcoded-device",
        ),
        source=_HUB + "verl-project/verl/issues/161",
        sample="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        rank_of_cause=CODE,
    ),
    Message(
        slug="nccl-invalid-usage",
        pattern=r"ncclInvalidUsage",
        meaning="NCCL was called in a way it refuses; the text after `Last error:` says which.",
        causes=("two ranks on one GPU (`Duplicate GPU detected`)", "different NCCL versions, or mixed up ranks"),
        mends=("NCCL_DEBUG=WARN for the reason", "rankwise doctor"),
        source=_HUB + "Peterande/D-FINE/issues/289",
        sample="ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="nccl-shared-memory",
        pattern=r"Error while (creating|attaching to) shared memory segment /dev/shm/nccl",
        literals=("shared memory segment /dev/shm/nccl",),
        meaning="NCCL's ranks of one host exchange data through /dev/shm, and a segment could not be made or found.",
        causes=("/dev/shm of the container is too small (64 MB is Docker's default)", "another rank died meanwhile"),
        mends=("docker run --shm-size=8g or --ipc=host; an emptyDir of medium Memory on Kubernetes", "df -h /dev/shm"),
        source=_HUB + "NVIDIA/nccl-tests/issues/166",
        sample="misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-KWfVyt (size "
        "5967872)",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="nccl-system-error",
        pattern=r"ncclSystemError",
        meaning="A system call or an external library failed under NCCL: sockets, memory, shared memory, IB verbs.",
        causes=("/dev/shm or ulimits too small", "a wrong or unreachable interface"),
        mends=("NCCL_DEBUG=WARN: the call that failed", "rankwise doctor: interfaces, /dev/shm, ulimits"),
        source=_HUB + "vllm-project/vllm/issues/6574",
        sample="ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="nccl-remote-error",
        pattern=r"ncclRemoteError",
        meaning="The other end of a connection is gone, or the network broke. Mostly the first.",
        causes=("another rank ended: look for its traceback or a kill", "a link that failed"),
        mends=("the rank that is missing in this log, first", "then the link between the two hosts"),
        source=_HUB + "tatsu-lab/stanford_alpaca/issues/207",
        sample="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="nccl-connection-closed",
        pattern=r"NCCL WARN .*Connection closed by remote peer",
        literals=("Connection closed by remote peer",),
        meaning="A rank's NCCL socket was closed from the other side: that process has ended.",
        causes=("the other rank crashed or was killed",),
        mends=("look for the first failure of the host that is named",),
        source=_HUB + "NVIDIA/nccl/issues/1612",
        sample="[0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.10.1.3<36138>",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="nccl-no-interface",
        pattern=r"no socket interface found",
        meaning="NCCL_SOCKET_IFNAME selects no interface of this host. It is a list of prefixes; `=eth0` is exact, "
        "`^lo` excludes.",
        causes=("an interface name copied from another machine",),
        mends=("unset NCCL_SOCKET_IFNAME, or name one of `ip -br addr`", "rankwise doctor"),
        source=_HUB + "marin-community/marin/issues/6940",
        sample="Bootstrap : no socket interface found",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="infiniband-completion",
        pattern=r"NET/IB\w* ?:.*Got completion from peer",
        literals=("Got completion from peer",),
        meaning="An InfiniBand or RoCE operation ended with an error. Status 12 is 'no answer after all retries', 5 "
        "a flushed queue: the echo.",
        causes=("hosts that cannot reach each other over this adapter", "a wrong GID index on RoCE", "the peer died"),
        mends=("ib_write_bw between the two hosts", "NCCL_IB_HCA, NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE=1 to compare"),
        source=_HUB + "NVIDIA/nccl/issues/1405",
        sample="ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 "
        "opcode=0 len=0 vendor err 129 (Recv)",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="nccl-unique-id",
        pattern=r"setting up NCCL communicator and retr\w+ ncclUniqueId",
        literals=("setting up NCCL communicator",),
        meaning="This rank is at its first NCCL collective and waits for rank 0, which has not come to it.",
        causes=("rank 0 died or still does something long, such as preparing data", "ranks took different branches"),
        mends=("rank 0's log first", "rankwise watch: where is each rank", "a longer timeout= of init_process_group"),
        source=_HUB + "NVIDIA-NeMo/Speech/issues/14399",
        sample="[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after "
        "600000ms",
        rank_of_cause=HANG,
    ),
    Message(
        slug="nccl-not-built",
        pattern=r"Distributed package doesn't have NCCL built in",
        meaning="This torch has no NCCL: a CPU build, Windows or macOS.",
        causes=("a CPU wheel on a GPU machine", "Windows or macOS"),
        mends=("install a CUDA build", "init_process_group('gloo') without GPUs, or rankwise.bind(), which chooses"),
        source=_HUB + "Alpha-VLLM/LLaMA2-Accessory/issues/166",
        sample="RuntimeError: Distributed package doesn't have NCCL built in",
        rank_of_cause=CODE,
    ),
    Message(
        slug="no-backend-for-device",
        pattern=r"No backend type associated with device type (\w+)",
        literals=("No backend type associated with device",),
        meaning="A tensor on this device was given to a group whose backend cannot take it, such as a CPU tensor to "
        "NCCL.",
        causes=("a metric, count or list of objects left on the CPU",),
        mends=("tensor.to(device) first", "init_process_group('cpu:gloo,cuda:nccl')"),
        source=_HUB + "unslothai/unsloth-zoo/issues/129",
        sample="[rank2]: RuntimeError: No backend type associated with device type cpu",
        rank_of_cause=CODE,
    ),
    Message(
        slug="collective-mismatch",
        pattern=r"Detected mismatch between collectives on ranks",
        meaning="TORCH_DISTRIBUTED_DEBUG=DETAIL compared the ranks: they are in different operations, or in the same "
        "with other shapes or types. It does not compare the reduce operation or the source.",
        causes=("rank-dependent branches around collectives", "batches or lists of different length per rank"),
        mends=("the two fingerprints in the line, and the tracebacks of both ranks", "rankwise lint train.py"),
        source=_HUB + "speechbrain/speechbrain/issues/2401",
        sample="RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=485, OpType=ALLREDUCE, TensorShape=[25]",
        rank_of_cause=CODE,
    ),
    Message(
        slug="monitored-barrier",
        pattern=r"failed to pass monitoredBarrier",
        meaning="The ranks that the line names did not come to the barrier in time.",
        causes=("those ranks died, hang or work on something long",),
        mends=("the logs of the ranks that are named", "rankwise watch"),
        source=_HUB + "NVIDIA/nccl/issues/849",
        sample="RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms",
        rank_of_cause=HANG,
    ),
    Message(
        slug="gloo-closed",
        pattern=r"gloo.*Connection (closed|reset) by peer",
        literals=("Connection closed by peer", "Connection reset by peer"),
        meaning="Another rank's process has ended, so gloo's connection to it is gone. Hardly ever the cause.",
        causes=("another rank ended: by an exception, a kill, or before this one had finished",),
        mends=("find the rank without this line", "a barrier before the ranks leave, and destroy_process_group()"),
        source=_HUB + "pytorch/pytorch/issues/75512",
        sample="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
        "[18.25.6.30]:28048",
        rank_of_cause=AFTER,
    ),
    Message(
        slug="gloo-timeout",
        pattern=r"Timed out waiting \d+ms for (recv|send) operation",
        literals=("Timed out waiting ",),
        meaning="A gloo collective did not end in time (30 minutes by default). gloo does not name the missing rank.",
        causes=("a rank died, hangs or took another branch", "rank 0 alone evaluates the wrapped model"),
        mends=("rankwise watch: names the rank and its line", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        source=_HUB + "meta-pytorch/torchtune/issues/2676",
        sample="[rank2]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
        "waiting 1800000ms for recv operation to complete",
        rank_of_cause=HANG,
    ),
    Message(
        slug="gloo-refused",
        pattern=r"gloo.*Connection refused",
        literals=("Connection refused",),
        meaning="gloo published an address of a rank that others cannot reach; 127.0.1.1 is what /etc/hosts often "
        "gives to a host's own name.",
        causes=("the host name resolves to a loopback address", "a firewall", "the rank has ended"),
        mends=("GLOO_SOCKET_IFNAME=INTERFACE on every host", "rankwise doctor"),
        source=_HUB + "pytorch/pytorch/issues/15592",
        sample="what():  [/opt/conda/conda-bld/pytorch_1544084119927/work/third_party/gloo/gloo/transport/tcp/pair.cc"
        ":724] connect [127.0.1.1]:3210: Connection refused",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="gloo-mesh",
        pattern=r"Gloo connectFullMesh failed",
        meaning="The ranks found the store but could not connect to each other.",
        causes=(
            "hosts with several interfaces, and gloo took one that others cannot reach",
            "a firewall on high ports",
        ),
        mends=("GLOO_SOCKET_IFNAME=INTERFACE, the same network on all hosts", "rankwise doctor"),
        source=_HUB + "sgl-project/sglang/issues/3226",
        sample="RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "no error",
        rank_of_cause=NETWORK,
    ),
    Message(
        slug="gloo-interface",
        pattern=r"Unable to find address for: ",
        meaning="The interface of GLOO_SOCKET_IFNAME is not on this host or has no address; NCCL's variable is "
        "another one.",
        causes=("a name copied from another machine", "an InfiniBand interface without an IP address"),
        mends=("ip -br addr, then GLOO_SOCKET_IFNAME=NAME or unset",),
        source=_HUB + "NVIDIA/Megatron-LM/issues/436",
        sample="RuntimeError: [enforce fail at third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != "
        "nullptr. Unable to find address for: bond1",
        rank_of_cause=SETUP,
    ),
    Message(
        slug="gloo-size",
        pattern=r"op\.preamble\.length <= op\.nbytes",
        meaning="A rank received more bytes than it expected: the ranks' tensors differ in size, or they are in "
        "different collectives.",
        causes=("all_gather or all_reduce of tensors whose shapes differ between ranks", "another order of calls"),
        mends=("TORCH_DISTRIBUTED_DEBUG=DETAIL: names operation and shapes", "pad, or all_gather_object"),
        source=_HUB + "pytorch/gloo/pull/456",
        sample="gloo::EnforceNotMet: [enforce fail at fbcode/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 194478720 vs 4",
        rank_of_cause=CODE,
    ),
    Message(
        slug="barrier-device",
        pattern=r"GPU \d+ to perform barrier as devices used by this process are currently unknown",
        literals=("to perform barrier as devices",),
        meaning="A warning: barrier() came before this rank's device was known to the group, so it guesses one from "
        "the rank. A wrong guess hangs.",
        causes=("init_process_group without device_id=",),
        mends=("init_process_group(device_id=torch.device('cuda', local_rank))", "rankwise.bind()"),
        source=_HUB + "deepspeedai/DeepSpeed/pull/7266",
        sample="[W404 00:15:21.693690333 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform "
        "barrier as devices used by this process are currently unknown.",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="group-not-destroyed",
        pattern=r"process group has NOT been destroyed",
        meaning="A warning at exit, not the reason of a crash: destroy_process_group() was not called.",
        causes=("the script ended without it, or by an exception",),
        mends=("torch.distributed.destroy_process_group() at the end", "rankwise rule missing-destroy"),
        source=_HUB + "sehoffmann/dmlcloud/issues/61",
        sample="[rank0]:[W227 10:54:51.986111855 ProcessGroupNCCL.cpp:1374] Warning: WARNING: process group has NOT "
        "been destroyed before we destruct ProcessGroupNCCL.",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="old-nccl-variable",
        pattern=r"Environment variable NCCL_\w+ is deprecated; use TORCH_NCCL_",
        literals=("is deprecated; use TORCH_NCCL_",),
        meaning="A warning: the variable has a new name; the old one is still read.",
        causes=("a launch script or framework from before torch 2.2",),
        mends=("rename it as the line says", "rankwise rule nccl-env"),
        source=_HUB + "ray-project/ray/issues/47286",
        sample="[rank7]:[W Utils.hpp:108] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function getCvarString)",
        rank_of_cause=ADVICE,
    ),
)
