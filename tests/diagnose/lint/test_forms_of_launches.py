"""Launch lines as public repositories spell them: variables and lists of options, quoted lines, options of Slurm."""

import pytest

from rankwise.diagnose.lint import check_source, source_from_text

JOB = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node={}\n#SBATCH --gres=gpu:4,scratch:50\n"
MEET = "--rdzv_backend c10d --rdzv_endpoint $HEAD:29500"
FOUR, ONE = JOB.format(4), JOB.format(1)
ACCELERATE = (
    "distributed_type: MULTI_GPU\ngpu_ids: 0,1\nmain_process_ip: {}\nnum_machines: {}\nnum_processes: {}\nuse_cpu: {}\n"
)


def codes(name, text):
    return [(found.rule.code, found.line) for found in check_source(source_from_text(text, name))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # options in a variable, and in a list, over several lines
        (
            FOUR + f'N=4\nARGS="\n  --nnodes 2 \\\n  --nproc_per_node $N\n  {MEET}"\nsrun torchrun $ARGS a.py\n',
            [("RW612", 9)],
        ),
        (
            FOUR + f'ARGS=(\n  --nproc_per_node 4\n  --nnodes 2 {MEET}\n)\nsrun torchrun "${{ARGS[@]}}" a.py\n',
            [("RW612", 8)],
        ),
        (ONE + f'ARGS=(--nproc_per_node 4 --nnodes 2 {MEET})\nsrun torchrun "${{ARGS[@]}}" a.py --nodes 3\n', []),
        (FOUR + f'ARGS="--nproc_per_node 1 --nnodes 8 {MEET}"\nsrun torchrun $ARGS train.py\n', []),
        # a launcher in a variable, on each node or replaced too early
        (FOUR + f'RUN="torchrun --nproc_per_node 4 --nnodes 2 {MEET}"\nsrun $RUN a.py\n', [("RW612", 5)]),
        (ONE + f'RUN="torchrun --nproc_per_node 4 --nnodes 2 {MEET}"\nsrun $RUN a.py\n', []),
        (
            ONE + 'RUN="torchrun --nnodes 2 --master_addr $H"\nsrun $RUN --node_rank $SLURM_NODEID a.py\n',
            [("RW617", 5)],
        ),
        (
            ONE + 'RUN="torchrun --nnodes 2 --master_addr $H --node_rank \\$SLURM_NODEID"\nsrun bash -c "$RUN a.py"\n',
            [],
        ),
        # a variable that has a default
        (
            "HOST=${HOST:-localhost}\ntorchrun --nnodes=2 --nproc_per_node=8 --node_rank=$1 --master_addr=$HOST a.py\n",
            [],
        ),
        # lines inside quotes: the shell of the batch script replaces variables in double ones
        (
            ONE + 'srun bash -c "torchrun --nnodes=2 \\\n --node_rank=$SLURM_NODEID --master_addr=$HEAD a.py"\n',
            [("RW617", 5)],
        ),
        (ONE + "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$HEAD a.py'\n", []),
        (ONE + 'srun bash -c "torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID --master_addr=$HEAD a.py"\n', []),
        (
            'for i in 0 1; do\n ssh n$i "cd p; torchrun --nnodes=2 --node_rank=$i --master_addr=localhost a"&\ndone\n',
            [("RW618", 2)],
        ),
        ("echo \"it's\"\nsrun bash -c 'export NCCL_TIMEOUT=9 # for all\n  python a.py'\nls  # don't\n", [("RW602", 2)]),
        # nodes that do not know of each other, or that nobody starts
        (ONE + "HEAD=$(srun -N1 -n1 hostname)\ntorchrun --nproc_per_node=4 train.py\n", [("RW621", 5)]),
        (ONE + "sbatch --nodes=1 next.sh\ntorchrun --nproc_per_node=4 train.py\n", []),
        ("grep -e NCCL_TIMEOUT=9 log\n", []),
        # names that nobody reads, known ones, and names of plugins
        ("export NCCL_PORT_RANGE=1-2 NCCL_RETRY_COUNT=3 NCCL_HEARTBEAT_TIMEOUT_SEC=9\n", [("RW602", 1)] * 3),
        ("export NCCL_NVTX_DISABLE=1 NCCL_OFI_RETRY_COUNT=3 NCCL_ARGS=x\n", []),
    ],
)
def test_lines_of_shell(text, wanted):
    """What is found in which line."""
    assert codes("run.sh", text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ACCELERATE.format("10.0.0.4", 2, 4, "false"), []),
        (ACCELERATE.format("localhost", 2, 4, "false"), [("RW618", 3)]),
        ('env:\n  - {name: NCCL_TIMEOUT, value: "30"}\n  - {name: NCCL_DEBUG, value: INFO}\n', [("RW602", 2)]),
    ],
)
def test_lines_of_yaml(text, wanted):
    """A configuration of Accelerate is the command line that says the same."""
    assert codes("job.yaml", text) == wanted
