"""torchmetrics inside `reduce`: equal to one rank on ragged shares, or refused by name."""

import warnings

import pytest
import torch
import torchmetrics
from torchmetrics import classification, regression

from rankwise.errors import ConfigError
from rankwise.metrics import Mean, reduce
from rankwise.testing import run_ranks
from rankwise.world import World


class Boxes(torchmetrics.Metric):
    """The states of a detection metric: lists, only gathered, of one tensor a sample, with unequal numbers of rows."""

    def __init__(self):
        super().__init__()
        for state in ("boxes", "scores", "wanted"):
            self.add_state(state, default=[], dist_reduce_fx=None)

    def update(self, boxes, scores, wanted):
        """Take lists, one item a sample."""
        self.boxes += boxes
        self.scores += scores
        self.wanted += wanted

    def compute(self):
        """Return a number that depends on which rows belong together, and on the order of samples; and rows."""
        overlap = [
            (at + 1.0) * (torch.cdist(boxes, wanted) * scores[:, None]).sum()
            for at, (boxes, scores, wanted) in enumerate(zip(self.boxes, self.scores, self.wanted, strict=True))
        ]
        rows = torch.tensor([[len(boxes), len(wanted)] for boxes, wanted in zip(self.boxes, self.wanted, strict=True)])
        return {"overlap": torch.stack(overlap).sum(), "rows": rows}


def boxes_of(sample):
    """Return boxes, scores and wanted boxes of a sample: of some samples none."""
    generator = torch.Generator().manual_seed(sample)
    found, wanted = sample % 4, (sample * 7) % 3
    return (
        torch.rand(found, 4, generator=generator),
        torch.rand(found, generator=generator),
        torch.rand(wanted, 4, generator=generator),
    )


SPLITS = {1: [40], 2: [13, 40], 3: [0, 27, 40]}


def made():
    # torchmetrics warns that these two keep everything; each rank has its own warning filters
    warnings.filterwarnings("ignore", message="Metric `.*` will save all targets")
    return {
        "mean": torchmetrics.MeanMetric(),
        "max": torchmetrics.MaxMetric(),
        "auroc": classification.BinaryAUROC(),
        "accuracy": classification.MulticlassAccuracy(num_classes=3, average="macro"),
        "confusion": classification.MulticlassConfusionMatrix(num_classes=3),
        "all": torchmetrics.MetricCollection(
            {"mae": regression.MeanAbsoluteError(), "mse": regression.MeanSquaredError()}
        ),
        "spearman": regression.SpearmanCorrCoef(),
        "retrieval": torchmetrics.retrieval.RetrievalMAP(),  # its lists are only gathered; queries cross the ranks
        "boxes": Boxes(),
    }


def updated(begin, end):
    generator = torch.Generator().manual_seed(3)
    scores, target = torch.rand(40, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    logits = torch.rand(40, 3, generator=generator)
    metrics = made()
    for low in range(begin, end, 6):
        part = slice(low, min(end, low + 6))
        metrics["mean"].update(scores[part])
        metrics["max"].update(scores[part])
        metrics["auroc"].update(scores[part], (target[part] > 0).long())
        metrics["accuracy"].update(logits[part], target[part])
        metrics["confusion"].update(logits[part], target[part])
        metrics["all"].update(scores[part], target[part].float())
        metrics["spearman"].update(scores[part], target[part].float())
        metrics["retrieval"].update(scores[part], target[part] > 0, indexes=torch.arange(40)[part] % 4)
        metrics["boxes"].update(*map(list, zip(*map(boxes_of, range(40)[part]), strict=True)))
    return metrics


def reduce_share(world):
    ends = [0, *SPLITS[world.world_size]]
    metrics = updated(ends[world.rank], ends[world.rank + 1])
    before = {state: getattr(metrics["mean"], state).clone() for state in metrics["mean"]._defaults}
    values = reduce(metrics, world)
    assert all(torch.equal(before[state], getattr(metrics["mean"], state)) for state in before)
    assert metrics["mean"]._to_sync
    return values


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ragged_ranks_equal_one(num_ranks):
    """Counts are equal, floats to float32's rounding, also where a rank saw nothing; local states are untouched."""
    whole = updated(0, 40)
    results = run_ranks(reduce_share, num_ranks) if num_ranks > 1 else [reduce_share(World.single())]
    for values in results:
        assert sorted(values) == [
            "accuracy",
            "all/mae",
            "all/mse",
            "auroc",
            "boxes",
            "confusion",
            "max",
            "mean",
            "retrieval",
            "spearman",
        ]
        assert torch.equal(values["confusion"], whole["confusion"].compute())
        for name in ("accuracy", "auroc", "max", "mean", "retrieval", "spearman"):
            assert values[name] == pytest.approx(whole[name].compute().item(), rel=1e-6)
        for name, value in whole["boxes"].compute().items():  # same tensors, same order: same bits
            assert torch.equal(torch.as_tensor(values["boxes"][name]), value)
        for name, value in whole["all"].compute().items():
            assert values[f"all/{name}"] == pytest.approx(value.item(), rel=1e-6)


def detected(world):
    """Mean average precision over ragged shares of images, some without boxes."""
    detection = pytest.importorskip("torchmetrics.detection")
    metric = detection.MeanAveragePrecision()
    ends = [0, *SPLITS[world.world_size]]
    for sample in range(ends[world.rank], ends[world.rank + 1]):
        found, scores, wanted = boxes_of(sample)
        found, wanted = (torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1) * 50 for boxes in (found, wanted))
        kinds = [torch.arange(len(boxes)) % 2 for boxes in (found, wanted)]
        metric.update([{"boxes": found, "scores": scores, "labels": kinds[0]}], [{"boxes": wanted, "labels": kinds[1]}])
    return {name: torch.as_tensor(value).tolist() for name, value in reduce({"map": metric}, world)["map"].items()}


def test_mean_average_precision_equals_one_rank():
    """The detection metric itself, to the bit; its wheels of torchvision want a torch with CUDA."""
    try:
        import pycocotools  # noqa: F401
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # the latter where torchvision was built for another torch
        pytest.skip(f"MeanAveragePrecision cannot be made here: {error}")
    whole = detected(World.single())
    assert -1 < whole["map"] < 1
    for num_ranks in (2, 3):
        assert run_ranks(detected, num_ranks) == [whole] * num_ranks


def beside_ours(world):
    metric = torchmetrics.SumMetric()
    metric.update(world.rank + 1.0)
    ours = Mean()
    ours.update(world.rank)
    first = reduce({"sum": metric, "ours": ours}, world, reset=True)
    return first, reduce({"sum": metric}, world)


def test_both_kinds_are_reduced_and_reset_together():
    """A mapping may hold both."""
    for first, after in run_ranks(beside_ours, 2):
        assert first == {"ours": 0.5, "sum": 3.0}
        assert after == {"sum": 0.0}


def test_states_that_cannot_be_merged_are_refused_by_name():
    """The message names metric, state and reduction, and what to do instead."""
    with pytest.raises(ConfigError, match=r"pearson: the state 'mean_x' of PearsonCorrCoef reduces by None"):
        reduce({"pearson": regression.PearsonCorrCoef()}, World.single())
    with pytest.raises(ConfigError, match=r"wrapped: MinMaxMetric wraps other metrics \(MeanMetric\)"):
        reduce({"wrapped": torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())}, World.single())
