"""Messages of checkpoints and of mixed precision."""

from __future__ import annotations

from rankwise.diagnose.explain.message import CODE, DATA, ROOT, Message

__all__ = ["MESSAGES"]

_HUB = "https://github.com/"

MESSAGES = (
    Message(
        slug="weights-only",
        pattern=r"Weights only load failed",
        meaning="torch.load reads tensors and plain types only since 2.6 (weights_only=True), and the file holds more.",
        causes=("a whole module, NumPy scalars or a configuration object in the file", "a damaged file"),
        mends=(
            "save state_dict() and plain types",
            "torch.serialization.add_safe_globals([TYPE]); weights_only=False only for files you trust",
            "rankwise rule save-whole-module",
        ),
        source=_HUB + "gpoesia/minimo/pull/21",
        sample="_pickle.UnpicklingError: Weights only load failed.",
        rank_of_cause=DATA,
    ),
    Message(
        slug="module-prefix",
        pattern=r"(Missing|Unexpected) key\(s\) in state_dict: \"module\.",
        literals=('key(s) in state_dict: "module.',),
        meaning="The names differ by `module.`: one of checkpoint and model is wrapped in DDP, the other is not.",
        causes=(
            "ddp_model.state_dict() was saved, and a plain model loads it, or the other way round",
            "both missing and unexpected names begin with `module.`: another architecture, not the prefix",
        ),
        mends=(
            "save model.module.state_dict()",
            "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')",
            "rankwise rule save-wrapped-state",
        ),
        source=_HUB + "bearpaw/pytorch-classification/issues/27",
        sample='Missing key(s) in state_dict: "module.bn.weight", "module.bn.bias", "module.bn.running_mean"',
        rank_of_cause=DATA,
    ),
    Message(
        slug="compiled-prefix",
        pattern=r"key\(s\) in state_dict: \"_orig_mod\.",
        meaning="The checkpoint comes from torch.compile(model), whose names begin with `_orig_mod.`.",
        causes=("the compiled wrapper's state_dict() was saved",),
        mends=("model.compile() in place, or save model._orig_mod.state_dict()",),
        source=_HUB + "AlmondGod/tinyworlds/pull/13",
        sample='Unexpected key(s) in state_dict: "_orig_mod.encoder.patch_embed.proj.weight"',
        rank_of_cause=DATA,
    ),
    Message(
        slug="damaged-archive",
        pattern=r"PytorchStreamReader failed",
        meaning="The checkpoint is not a whole file.",
        causes=(
            "the job was killed while it saved, or the disk was full",
            "several ranks wrote the same file",
            "another rank reads before rank 0 has finished",
        ),
        mends=(
            "an earlier checkpoint; save to a new name, then os.replace",
            "only rank 0 saves, then a barrier: rankwise rule save-on-all-ranks",
        ),
        source=_HUB + "CompVis/stable-diffusion/issues/93",
        sample="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        rank_of_cause=DATA,
    ),
    Message(
        slug="optimizer-groups",
        pattern=r"loaded state dict contains a parameter group that doesn't match",
        meaning="The saved optimizer has another number of parameters than this one.",
        causes=("layers were frozen, added or removed since", "another model configuration"),
        mends=(
            "the same requires_grad and order as when it was saved",
            "start the optimizer anew, load the model only",
        ),
        source=_HUB + "kohya-ss/sd-scripts/issues/378",
        sample="ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's "
        "group",
        rank_of_cause=DATA,
    ),
    Message(
        slug="saved-device",
        pattern=r"Attempting to deserialize object on (a )?CUDA",
        literals=("Attempting to deserialize object on",),
        meaning="The checkpoint's tensors belong to a GPU that this process does not see.",
        causes=("torch.load without map_location in a job of fewer GPUs",),
        mends=("torch.load(path, map_location='cpu')", "rankwise rule load-without-map-location"),
        source=_HUB + "ZQPei/deep_sort_pytorch/issues/51",
        sample="RuntimeError: Attempting to deserialize object on CUDA device 2 but torch.cuda.device_count() is 1.",
        rank_of_cause=DATA,
    ),
    Message(
        slug="disk-full",
        pattern=r"No space left on device",
        meaning="A file system is full; it may be /tmp or /dev/shm and not the one of the checkpoints.",
        causes=("old checkpoints", "a small /dev/shm or /tmp", "no inodes left"),
        mends=("df -h and df -i of the path in the traceback, /tmp and /dev/shm", "keep fewer checkpoints"),
        source=_HUB + "babysor/MockingBird/issues/774",
        sample="OSError: [Errno 28] No space left on device",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="quota",
        pattern=r"Disk quota exceeded",
        meaning="The user's or project's quota is used up, though the disk has space.",
        causes=("a quota on bytes or on the number of files",),
        mends=("quota -s, or the tool of your cluster", "write to scratch"),
        source=_HUB + "open-mmlab/mmdetection/issues/12069",
        sample="OSError: [Errno 122] Disk quota exceeded",
        rank_of_cause=ROOT,
    ),
    Message(
        slug="unscale-half",
        pattern=r"Attempting to unscale FP16 gradients",
        meaning="GradScaler needs float32 parameters; these are float16, so their gradients are.",
        causes=("the model was loaded or converted with .half() / torch_dtype=float16 and autocast is used as well",),
        mends=("float32 weights with autocast, or bfloat16 without a scaler",),
        source=_HUB + "haotian-liu/LLaVA/issues/363",
        sample="ValueError: Attempting to unscale FP16 gradients",
        rank_of_cause=CODE,
    ),
)
