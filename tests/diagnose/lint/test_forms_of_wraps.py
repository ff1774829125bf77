"""Wrapped models in other clothes: made by functions, in dicts, fields, aliases, and what is done with them there.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. All invented.
"""

from __future__ import annotations

import pytest

HEAD = """import copy
import pickle
import torch
import torch.distributed as dist
from dataclasses import dataclass
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SCRIPTS = {
    "a state that fills a dict, in a class that another one holds": """
class Keeper:
    def save(self, model, path):
        state = {"step": 1}
        state["model"] = model.state_dict()  #> save-wrapped-state
        torch.save(state, path)

class Learner:
    def __init__(self, net):
        self.net = DDP(net)
        self.keeper = Keeper()

    def fit(self, path):
        if dist.get_rank() == 0:
            self.keeper.save(self.net, path)
""",
    "the same for what is behind the wrap": """
class Keeper:
    def save(self, model, path):
        state = {"step": 1}
        state["model"] = model.state_dict()
        torch.save(state, path)

class Learner:
    def __init__(self, net):
        self.net = DDP(net)
        self.bare = self.net.module
        self.keeper = Keeper()

    def fit(self, path):
        if dist.get_rank() == 0:
            self.keeper.save(self.bare, path)
""",
    "a state by way of a result, a copy, and pickle": """
class Learner:
    def __init__(self, net):
        self.net = DDP(net)
        self.best = None

    def state(self):
        return {"net": self.net.state_dict()}  #> save-wrapped-state

    def keep(self):
        self.best = copy.deepcopy(self.net.state_dict())  #> save-wrapped-state

    def save(self, path, file):
        if dist.get_rank() == 0:
            torch.save(self.state(), path)
            torch.save(self.best, path)
            pickle.dump(self.net.state_dict(), file)  #> save-wrapped-state
""",
    "a state that one side of an if takes out of the wrap": """
def save(net, path, several):
    model = DDP(net)
    if dist.get_rank() == 0:
        if several:
            state = model.module.state_dict()
        else:
            state = model.state_dict()
        torch.save({"model": state}, path)
""",
    "a compiled wrap, and an alias of a field": """
class Learner:
    def __init__(self, net):
        self.net = DDP(net)

    def save(self, path):
        net = self.net
        if dist.get_rank() == 0:
            torch.save(net.state_dict(), path)  #> save-wrapped-state

def save(net, path):
    model = DDP(net)
    fast = torch.compile(model)
    if dist.get_rank() == 0:
        torch.save(fast.state_dict(), path)  #> save-wrapped-state
""",
    "passes of what a function, getattr or a choice takes out": """
def unwrap(model):
    return model.module if hasattr(model, "module") else model

def one(net, loader, optimizer, several):
    model = DDP(net)
    bare = getattr(model, "module", model)
    for x in loader:
        bare(x).sum().backward()  #> module-forward
        optimizer.step()
    for x in loader:
        unwrap(model).score(x).sum().backward()  #> module-forward
        optimizer.step()
    for x in loader:
        loss = (model.module if several else model).score(x).sum()  #> module-forward
        loss.backward()
        optimizer.step()
""",
    "what is taken out and only asked": """
def unwrap(model):
    return model.module if hasattr(model, "module") else model

def one(net, loader, optimizer):
    model = DDP(net)
    bare = getattr(model, "module", model)
    for x in loader:
        loss = model(x).sum() + bare.penalty
        loss.backward()
        optimizer.step()
        unwrap(model).update()
    with torch.no_grad():
        return bare(x)

def two(bare, loader, optimizer):
    bare = DDP(bare)
    for x in loader:
        bare(x).sum().backward()
        optimizer.step()
""",
    "a pass whose scaler runs backward": """
def train(net, loader, optimizer, loss_scaler):
    model = DDP(net)
    for x in loader:
        loss = model.module.score(x).sum()  #> module-forward
        loss_scaler(loss, optimizer, parameters=model.parameters())
""",
    "what another function wraps is moved and converted": """
def wrap(net):
    model = DDP(net)
    return model

def main(net, device):
    net = wrap(net)
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)  #> syncbn-after-wrap
    net = net.to(device)  #> move-after-wrap
    return net
""",
    "what another function places and wraps": """
def wrap(net, device):
    model = DDP(net.to(device))
    return model

def main(net, device):
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = wrap(net, device)
    net = net.to(device)
    return net
""",
    "later methods": """
class Engine:
    def __init__(self, net):
        self.model = DDP(net)

    def widen(self, n):
        self.model.module.head = torch.nn.Linear(4, n)  #> params-after-wrap

    def freeze(self):
        for p in self.model.module.encoder.parameters():
            p.requires_grad = False  #> requires-grad-after-wrap
""",
    "earlier methods, and a step that freezes in turn": """
class Engine:
    def __init__(self, net, critic):
        self.model = net
        self.widen(4)
        self.freeze()
        self.model = DDP(self.model)
        self.critic = DDP(critic)

    def widen(self, n):
        self.model.head = torch.nn.Linear(4, n)

    def freeze(self):
        for p in self.model.encoder.parameters():
            p.requires_grad = False

    def hold(self, on):
        for p in self.critic.module.parameters():
            p.requires_grad = not on

    def step(self, x):
        self.hold(True)
        self.critic(self.model(x)).sum().backward()
        self.hold(False)
""",
    "attributes in a loop, a return and a sum": """
class Engine:
    def __init__(self, net):
        self.model = DDP(net)

    def layers(self):
        for layer in self.model.blocks:  #> attribute-of-wrapped
            print(layer)
        return self.model.head  #> attribute-of-wrapped

    def step(self):
        self.model.steps += 1  #> attribute-of-wrapped
""",
    "attributes that the class sets": """
class Engine:
    def __init__(self, net):
        self.model = DDP(net)
        self.model.steps = 0

    def step(self):
        self.model.steps += 1
        return self.model.module.head
""",
    "an optimizer behind the shards, or made again": """
class Engine:
    def __init__(self, net):
        self.model = net
        self.shard()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def shard(self):
        self.model = FSDP(self.model)

class Again:
    def __init__(self, net):
        self.model = net
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.shard()

    def shard(self):
        self.model = FSDP(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

def groups(model):
    return torch.optim.AdamW([p for n, p in model.named_parameters()])

def main(net, other):
    optimizer = groups(other)
    model = FSDP(net)
    return model, groups(model), optimizer
""",
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    text = HEAD + SCRIPTS[case]
    found, wanted = judged(text)
    assert found == wanted
