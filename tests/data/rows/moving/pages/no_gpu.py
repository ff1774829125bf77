"""Where torch finds no CUDA device, the CPU plays it: `.cuda()` and `.to("cuda")` leave tensors where they are."""


def play_gpu():
    """Change torch in this process, if it has no CUDA device; return whether."""
    import torch

    if torch.cuda.is_available():
        return False
    number, to = [0], torch.Tensor.to
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: number[0]
    torch.cuda.set_device = lambda chosen: number.__setitem__(0, chosen)
    torch.Tensor.cuda = lambda tensor: tensor
    torch.Tensor.to = lambda tensor, *where, **how: tensor if where == ("cuda",) else to(tensor, *where, **how)
    return True
