"""Trains with PyTorch on the ranks of the job, or alone, and prints the parameters.

    parallel_torch.py BATCH [DEVICE]
"""

import contextlib
import json
import sys

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import grpcxx.torch
from grpcxx import parallel

device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
torch.manual_seed(3)
random = torch.randn(128, 9)
data = TensorDataset(random[:, :8], random[:, :8].sum(1, keepdim=True) + 0.1 * random[:, 8:])
# Rank 0's parameters count.
torch.manual_seed(11 + parallel.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1), torch.nn.Linear(16, 1))
model[3].requires_grad_(False)
unused = torch.nn.Linear(2, 2)
model.add_module("unused", unused)
model.register_buffer("seen", torch.full((2,), float(parallel.rank())))
model.to(device)
# What trains alone knows nothing of it.
together = grpcxx.torch.DataParallel(model, bucket_mib=1) if parallel.size() > 1 else model
network = torch.nn.Sequential(*list(model)[:3])
model.forward = network.forward
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.1)
sampler = DistributedSampler(data, parallel.size(), parallel.rank(), shuffle=False)
loader = DataLoader(data, int(sys.argv[1]), sampler=sampler)


def loss_of(x, y):
    return torch.nn.functional.mse_loss(together(x.to(device)), y.to(device))


for epoch in range(3):
    # It is frozen, and thawed, after the model is wrapped.
    model[0].requires_grad_(epoch != 1)
    for x, y in loader:
        optimizer.zero_grad()
        half = len(x) // 2
        # Two halves, of which the first waits for the second.
        with together.no_sync() if together is not model else contextlib.nullcontext():
            (loss_of(x[:half], y[:half]) / 2).backward()
        (loss_of(x[half:], y[half:]) / 2).backward()
        optimizer.step()
found = {name: value.ravel().tolist() for name, value in model.state_dict().items()}
own = torch.cat([value.ravel() for value in network.state_dict().values()])
all_found = parallel.group().all_gather(own[None].cpu())
print(json.dumps({"found": found, "is_same": bool((all_found == all_found[0]).all())}))
