"""What cannot train rightly is refused when it comes, with the mend; what can is shown to."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from rankwise import Order
from rankwise.errors import ConfigError, RankwiseError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import BySamples, ExactStep, Trainer, Window, prepare
from rankwise.train.models.sharding import Prepared, note_prepared
from rankwise.world import World

NUM_SAMPLES = 22


def make_loader(world, micro_batch=None):
    rng = np.random.default_rng(2)
    order = Order(NUM_SAMPLES, batch_size=6)
    return ArrayLoader(
        {"x": rng.normal(size=(NUM_SAMPLES, 4))},
        order,
        seed=order.seed,
        rank=world.rank,
        world_size=world.world_size,
        micro_batch=micro_batch,
    )


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def squares(model, batch):
    return model(batch["x"])[:, 0] ** 2


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def said_of(make):
    try:
        make()
    except RankwiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def models_without_strategy(world):
    """What is said of each wrapper, by each door."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = DistributedDataParallel(make_model())
            self.head = nn.Linear(1, 1).double()

    def sharded(root):
        model = make_model()
        fully_shard(model if root else model[0])
        return model

    makers = {
        "plain": make_model,
        "data parallel": lambda: nn.DataParallel(make_model()),
        "fsdp1": lambda: FullyShardedDataParallel(make_model(), device_id=torch.device("cpu")),
        "fsdp2": lambda: sharded(root=True),
        "fsdp2 inside": lambda: sharded(root=False),
        "half": Headed,
    }
    found = {}
    for name, make in makers.items():
        model = make()
        found[name] = [
            said_of(lambda model=model: ExactStep(model, sgd(model), squares, world=world)),
            said_of(lambda model=model: Window(model, world, num_micro=1)),
        ]
        if name not in ("plain", "half"):
            found[name].append(said_of(lambda model=model: Trainer(model, sgd(model), squares, world=world, run=False)))
            found[name].append(said_of(lambda model=model: prepare(model, world)))
    model = DistributedDataParallel(make_model())
    found["another world"] = [said_of(lambda: ExactStep(model, sgd(model), squares, world=World.single()))]
    compiled = torch.compile(prepare(make_model(), world), backend="eager")
    found["compiled"] = [said_of(lambda: ExactStep(compiled, sgd(compiled), squares, world=world))]
    return found


def test_models_that_do_not_synchronise_are_refused():
    """Every door of every room says so on every rank; a compiled wrapper is none of these."""
    wanted = {
        "plain": "Wrap it first: model = rankwise.prepare",
        "data parallel": "pass the module inside it",
        "fsdp1": "FSDP1.*strategy='fsdp'",
        "fsdp2": "^nothing$|prepare needs a plain module, got a FSDPSequential",
        "fsdp2 inside": "2 trainable parameters are outside.*2.weight|prepare needs a plain module",
        "half": "2 trainable parameters are outside .* DistributedDataParallel.*head.weight",
        "another world": "replicated over 2 ranks, but this world has 1",
        "compiled": "^nothing$",
    }
    import re

    for found in run_ranks(models_without_strategy, 2, timeout=300):
        assert set(found) == set(wanted)
        for name, messages in found.items():
            for said in messages:
                assert re.search(wanted[name], said), (name, said)


def test_one_rank_takes_a_plain_module_and_no_data_parallel():
    """On one rank nothing needs to be added up; several devices in one process are refused all the same."""
    model = make_model()
    ExactStep(model, sgd(model), squares, world=World.single())
    with pytest.raises(ConfigError, match="one rank per device"):
        Trainer(nn.DataParallel(model), sgd(model), squares, world=World.single(), run=False)


def make_trainer(model, optimizer, **options):
    return Trainer(model, optimizer, squares, world=World.single(), run=False, progress=False, **options)


def test_an_optimizer_that_was_not_taken_over_to_the_shards():
    """It holds what the model had before: the error names the call that is missing."""
    model, before = make_model(), make_model()
    refs = {id(p): (weakref.ref(p), name) for name, p in before.named_parameters()}
    note_prepared(model, Prepared(strategy="fsdp", before=refs))
    with pytest.raises(ConfigError, match=r"= rankwise.train.prepare_optimizer\(optimizer, model\)"):
        ExactStep(model, sgd(before), squares, world=World.single())


def test_an_optimizer_that_was_not_sharded(caplog):
    """Beside zero1 it takes right steps and saves no memory: said once, with the call that is missing."""
    model = make_model()
    note_prepared(model, Prepared(strategy="zero1"))
    optimizer = sgd(model)
    for _ in range(2):
        ExactStep(model, optimizer, squares, world=World.single())
    (said,) = [record.getMessage() for record in caplog.records]
    assert "every rank holds the whole state of this SGD" in said
    assert said.endswith("optimizer = rankwise.train.prepare_optimizer(optimizer, model)")


def test_the_optimizers_parameters_are_the_models(caplog):
    """Another instance, or a loss of one's own: refused. Parameters in no group: named once."""
    with pytest.raises(ConfigError, match=r"4 of the 4 tensors .* not parameters of the model \(group 0\)"):
        make_trainer(make_model(), sgd(make_model()))
    model, loss = make_model(), nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"2 of the 6 tensors .*\(group 1\).* loss module that learns"):
        make_trainer(model, torch.optim.SGD([{"params": model.parameters()}, {"params": loss.parameters()}], lr=0.1))
    model[0].bias.requires_grad_(False)
    optimizer = sgd(model[0])
    trainer = make_trainer(model, optimizer)
    trainer.fit(make_loader(World.single()))
    texts = [r.getMessage() for r in caplog.records if "in no group" in r.getMessage()]
    assert len(texts) == 1
    assert "2 trainable parameters are in no group of the optimizer and will not change: 2.weight, 2.bias." in texts[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: [sgd(m), sgd(m)], "one optimizer must take the step, got a list of 2"),
        (lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS.step needs closure"),
        (lambda _: "adam", "must be a torch optimizer, got a str"),
    ],
    ids=["list", "closure", "text"],
)
def test_optimizers_that_take_no_step_alone_are_refused(make, said):
    """By the trainer and by the exact step, in words."""
    model = make_model()
    with pytest.raises(ConfigError, match=said):
        make_trainer(model, make(model))
    with pytest.raises(ConfigError, match=said):
        ExactStep(model, make(model), squares, world=World.single())


def test_schedulers_that_want_a_value_are_refused():
    """ReduceLROnPlateau would fail at the first step; the message says where it is stepped."""
    model = make_model()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer := sgd(model))
    with pytest.raises(ConfigError, match=r"ReduceLROnPlateau.step needs metrics.*validation_end=.*parts="):
        make_trainer(model, optimizer, scheduler=plateau)
    with pytest.raises(ConfigError, match="scheduler= must be one object with a step"):
        ExactStep(model, optimizer, squares, world=World.single(), scheduler=[])


def test_schedulers_of_another_optimizer_are_refused():
    """Such as of one that was replaced afterwards: its rates would change, and those of the steps never."""
    model = make_model()
    theirs, optimizer = sgd(model), sgd(model)
    for scheduler in (torch.optim.lr_scheduler.StepLR(theirs, 1), torch.optim.lr_scheduler.ExponentialLR(theirs, 0.9)):
        for given in (scheduler, BySamples(scheduler, per=8)):
            with pytest.raises(ConfigError, match=r"was made for another SGD .*scheduler=lambda optimizer: "):
                make_trainer(model, optimizer, scheduler=given)
            with pytest.raises(ConfigError, match="was made for another SGD"):
                ExactStep(model, optimizer, squares, world=World.single(), scheduler=given)
            ExactStep(model, theirs, squares, world=World.single(), scheduler=given)


def test_an_optimizer_around_another_takes_the_schedulers_of_both():
    """As sharpness-aware ones are made; also after a restored state, which gives each its own groups."""

    class Around(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, inner.defaults)
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    around = Around(inner := sgd(model := make_model()))
    around.load_state_dict(around.state_dict())
    for optimizer in (around, inner):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        ExactStep(model, around, squares, world=World.single(), scheduler=scheduler)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_modules_without_parameters_yet_are_refused():
    """By `prepare`, in words, instead of torch's error about a shape."""
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match=r"^the module '0' has no parameters yet: run one batch through"):
        make_trainer(model, sgd(model))


def test_validation_data_are_looked_at_first():
    """Before the first epoch and not after it: what has no epochs is refused, and what is said works."""
    data = TensorDataset(torch.ones(8, 4, dtype=torch.float64))
    trainer = make_trainer(model := make_model(), sgd(model))
    with pytest.raises(ConfigError, match=r"val= must be a loader .*got a TensorDataset, which has no __iter__, set"):
        trainer.fit(make_loader(World.single()), val=data)
    with pytest.raises(ConfigError, match="give it to DatasetLoader"):
        trainer.fit(data)


def with_zero(world):
    """Train with a sharded optimizer that the user has made, and with a whole one."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parameters = []
    for kind in (torch.optim.AdamW, None):
        model = prepare(make_model(), world)
        optimizer = (
            kind(model.parameters(), lr=0.01)
            if kind
            else ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        )
        step = ExactStep(model, optimizer, squares, world=world)
        for batches in make_loader(world):
            step(batches)
        parameters.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return parameters[0].tolist(), parameters[1].tolist()


def test_a_sharded_optimizer_of_the_users_takes_exact_steps():
    """ZeroRedundancyOptimizer over what prepare returned trains as the plain one does."""
    for whole, sharded in run_ranks(with_zero, 2, timeout=240):
        assert sharded == pytest.approx(whole, abs=1e-12)


def with_static_graph(world, static_graph):
    model = prepare(make_model(), world, static_graph=static_graph)
    step = ExactStep(model, sgd(model), squares, world=world)
    for batches in make_loader(world, micro_batch=1):
        step(batches)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_a_static_graph_goes_with_micro_batches():
    """The first backward that DistributedDataParallel sees is the warm-up's, which synchronises."""
    plain = run_ranks(with_static_graph, 2, False)
    assert run_ranks(with_static_graph, 2, True)[0] == pytest.approx(plain[0], abs=1e-12)


def static_window(world):
    model = prepare(make_model(), world, static_graph=True)
    with pytest.raises(ConfigError, match="static_graph"):
        Window(model, world, num_micro=2)


def test_a_static_graph_is_refused_where_its_first_pass_would_not_synchronise():
    """A window of several micro-batches alone: torch would fail without a word about why."""
    run_ranks(static_window, 2)
