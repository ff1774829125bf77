"""Messages of DistributedDataParallel and of the models in it."""

from __future__ import annotations

from rankwise.diagnose.explain.message import ADVICE, CODE, Message

__all__ = ["MESSAGES"]

_HUB = "https://github.com/"

MESSAGES = (
    Message(
        slug="unfinished-reduction",
        pattern=r"Expected to have finished reduction in the prior iteration(?!.*training graph has changed)",
        literals=("finished reduction in the prior",),
        meaning="Parameters got no gradient in the last backward, so DDP still waits for them. It is told at the next "
        "forward. find_unused_parameters=True is the dear way out (a walk of the graph in every step), not a default.",
        causes=(
            "a branch or head that this batch did not use",
            "an output of forward that the loss leaves out",
            "layers that are built and never called",
        ),
        mends=(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: the names of the parameters",
            "remove the layer, requires_grad_(False) before the wrap, or use it in the loss",
            "the same parameters unused in every step: DDP(static_graph=True); else find_unused_parameters=True",
        ),
        source=_HUB + "pytorch/pytorch/issues/68862",
        sample="RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="unused-parameters",
        pattern=r"Parameter indices which did not receive grad for rank \d+",
        literals=("which did not receive grad",),
        meaning="The indices, in the order of model.parameters() that require gradients, which got none on this rank.",
        causes=("see the message before it: unused layers or outputs",),
        mends=("[n for n, p in model.named_parameters() if p.requires_grad][INDEX]",),
        source=_HUB + "buxiangzhiren/DDCap/issues/35",
        sample="Parameter indices which did not receive grad for rank 0: 1",
        rank_of_cause=CODE,
    ),
    Message(
        slug="graph-changed",
        pattern=r"[Yy]our training graph (has changed|is changed) in this iteration",
        literals=("our training graph ",),
        meaning="static_graph=True promised that the same parameters are used in each step, and they are not.",
        causes=("freezing or unfreezing in mid-run", "branches that depend on the data"),
        mends=("static_graph=False", "wrap again after requires_grad was changed"),
        source=_HUB + "msed-Ebrahimi/ARoFace/issues/5",
        sample="RuntimeError: Your training graph has changed in this iteration, e.g., one parameter is unused in "
        "first iteration, but then got used in the second iteration.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="ready-twice",
        pattern=r"Expected to mark a variable ready only once",
        meaning="A parameter's gradient came twice in one backward.",
        causes=(
            "reentrant activation checkpointing, mostly with find_unused_parameters=True",
            "two forwards through shared weights, or a parameter used outside forward",
        ),
        mends=(
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)",
            "Hugging Face: gradient_checkpointing_kwargs={'use_reentrant': False}",
            "rankwise rule checkpoint-reentrant",
        ),
        source=_HUB + "modelscope/ms-swift/issues/3171",
        sample="[rank3]: RuntimeError: Expected to mark a variable ready only once.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="reentrant-not-said",
        pattern=r"use_reentrant.{0,40}(should be passed explicitly|explicitly)",
        literals=("use_reentrant",),
        meaning="A warning: checkpoint() without use_reentrant= takes the old, reentrant way, which goes badly with "
        "DDP's find_unused_parameters.",
        causes=("a call without the argument",),
        mends=("use_reentrant=False", "rankwise rule checkpoint-reentrant"),
        source=_HUB + "modelscope/ms-swift/issues/2590",
        sample="UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="needless-unused",
        pattern=r"find_unused_parameters=True was specified in DDP constructor, but did not find any",
        meaning="A warning: in the first step nothing was unused, so the search in every step may be for nothing.",
        causes=("find_unused_parameters=True by habit",),
        mends=("drop it, unless later steps take other branches", "rankwise rule find-unused-always"),
        source=_HUB + "cszn/KAIR/issues/103",
        sample="[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did "
        "not find any unused parameters in the forward pass.",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="grad-strides",
        pattern=r"Grad strides do not match bucket view strides",
        meaning="A warning about speed: gradients of these parameters are copied, because their layout differs from "
        "the bucket's. Results are right.",
        causes=("1x1 convolutions or channels_last", "transposed or expanded tensors in backward"),
        mends=("nothing is wrong; .contiguous() before the layer where it matters",),
        source=_HUB + "pytorch/pytorch/issues/70222",
        sample="Grad strides do not match bucket view strides.",
        rank_of_cause=ADVICE,
    ),
    Message(
        slug="nothing-to-train",
        pattern=r"DistributedDataParallel is not needed when a module doesn't have any parameter",
        meaning="The wrapped module has no parameter with requires_grad=True, so there is nothing to synchronise.",
        causes=("a frozen or loss module is wrapped", "adapters that were loaded frozen"),
        mends=("leave this module unwrapped and move it to the device", "unfreeze before the wrap"),
        source=_HUB + "huggingface/accelerate/issues/760",
        sample="RuntimeError: DistributedDataParallel is not needed when a module doesn't have any parameter that "
        "requires a gradient.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="modified-in-place",
        pattern=r"needed for gradient computation has been modified by an inplace operation",
        meaning="A tensor that backward needs was overwritten. Under DDP it is often its own doing: each forward "
        "broadcasts rank 0's buffers in place.",
        causes=(
            "two forwards of a module with BatchNorm before one backward, as in a GAN",
            "a real in-place operation (+=, relu_) in the model",
        ),
        mends=(
            "one forward of both batches together, or SyncBatchNorm",
            "DDP(broadcast_buffers=False) (forward_sync_buffers=False from torch 2.13), if local statistics will do",
            "torch.autograd.set_detect_anomaly(True) for the line",
        ),
        source=_HUB + "pytorch/pytorch/issues/22095",
        sample="RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.cuda.FloatTensor [1, 32]] is at version 3; expected version 2 instead.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="parameter-count",
        pattern=r"DDP expects same model across all ranks",
        meaning="The ranks wrapped models with different numbers of parameters; `0 params` also means that the other "
        "rank's call failed or is another collective.",
        causes=("a rank failed just before the wrap", "frozen layers, vocabularies or configurations that differ"),
        mends=("the traceback of the rank with another count", "print(len(list(model.parameters()))) on each rank"),
        source=_HUB + "ViTAE-Transformer/RSP/issues/5",
        sample="DDP expects same model across all ranks, but Rank 0 has 161 params, while rank 1 has inconsistent 0 "
        "params.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="parameter-shape",
        pattern=r"params\[\d+\] in this process with sizes .* appears not to match",
        literals=("in this process with sizes ",),
        meaning="A parameter's shape or strides on this rank differ from rank 0's.",
        causes=(
            "sizes drawn or computed from each rank's own data",
            "a random architecture without a common seed",
            "strides: a checkpoint or channels_last on some ranks only",
        ),
        mends=("compute sizes on rank 0 and broadcast them", "the same seed while the model is built"),
        source=_HUB + "huggingface/transformers/issues/16417",
        sample="RuntimeError: params[0] in this process with sizes [253991, 1024] appears not to match sizes of the "
        "same param in process 0",
        rank_of_cause=CODE,
    ),
    Message(
        slug="wrapped-attribute",
        pattern=r"'DistributedDataParallel' object has no attribute",
        meaning="The wrapper does not hand through the model's own attributes.",
        causes=("model.attribute after the wrap",),
        mends=(
            "model.module.attribute; but forward through the wrapper: model.module(x) does not synchronise",
            "rankwise rule module-forward",
        ),
        source=_HUB + "ultralytics/yolov5/issues/90",
        sample="AttributeError: 'DistributedDataParallel' object has no attribute 'model'",
        rank_of_cause=CODE,
    ),
    Message(
        slug="device-ids",
        pattern=r"DistributedDataParallel device_ids and output_device arguments only work",
        meaning="device_ids= was given for a model that is on the CPU or on several devices.",
        causes=("the model was not moved before the wrap", "device_map='auto' spread it over GPUs"),
        mends=("model.to(f'cuda:{local_rank}') first", "no device_ids for a CPU model or one of several devices"),
        source=_HUB + "pytorch/pytorch/issues/100243",
        sample="ValueError: DistributedDataParallel device_ids and output_device arguments only work with "
        "single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], output_device 0, and module "
        "parameters {device(type='cpu')}.",
        rank_of_cause=CODE,
    ),
    Message(
        slug="two-devices",
        pattern=r"Expected all tensors to be on the same device",
        meaning="An operation met tensors of two devices.",
        causes=(
            "the target or a mask was left on the CPU (DDP moves only forward's inputs)",
            "a fixed 'cuda:0' in a rank of another device",
            "a tensor made in forward without device=",
        ),
        mends=(
            "target.to(device, non_blocking=True)",
            "register_buffer for constants",
            "rankwise rule target-not-moved, rankwise rule hardcoded-device",
        ),
        source=_HUB + "Stability-AI/stablediffusion/issues/106",
        sample="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cuda:1!",
        rank_of_cause=CODE,
    ),
    Message(
        slug="syncbatchnorm-on-cpu",
        pattern=r"SyncBatchNorm expected input tensor to be on (GPU|\w+)",
        literals=("SyncBatchNorm expected input tensor",),
        meaning="SyncBatchNorm works on GPUs only.",
        causes=("a converted model is evaluated or tested on the CPU", "inputs that were not moved"),
        mends=("convert only where there are GPUs", "convert after loading for inference: plain BatchNorm"),
        source=_HUB + "open-mmlab/mmsegmentation/issues/2147",
        sample="ValueError: SyncBatchNorm expected input tensor to be on GPU",
        rank_of_cause=CODE,
    ),
    Message(
        slug="batchnorm-one-value",
        pattern=r"Expected more than 1 value per channel when training",
        meaning="A BatchNorm layer got one value per channel, of which it can take no variance.",
        causes=("a last batch of one sample on this rank", "a batch size per rank of 1"),
        mends=("DataLoader(drop_last=True), or a greater batch per rank", "SyncBatchNorm or GroupNorm"),
        source=_HUB + "donnyyou/torchcv/issues/141",
        sample="ValueError: Expected more than 1 value per channel when training, got input size 1",
        rank_of_cause=CODE,
    ),
)
