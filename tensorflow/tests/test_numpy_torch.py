"""`grpcxx.torch`: a model on several ranks trains as on one. Left out where PyTorch is not installed."""

import copy
import gc
import io
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "programs/parallel_torch.py"
BATCH = 32


def trained(*command):
    finished = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=240, check=False, env=os.environ
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU with CUDA")
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])


@on_devices
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_process_with_the_batch_of_all(ranks, device):
    alone = trained(PROGRAM, BATCH, device)
    found = trained("-m", "grpcxx.parallel", "-n", ranks, PROGRAM, BATCH // ranks, device)
    assert found["is_same"], "all ranks have the same bits"
    assert set(found["found"]) == set(alone["found"])
    for name, values in alone["found"].items():
        np.testing.assert_allclose(found["found"][name], values, rtol=2e-4, atol=1e-6, err_msg=name)


def test_what_the_script_does_not_seed_is_split_alike_on_all_ranks(tmp_path):
    script = tmp_path / "split.py"
    script.write_text(
        """
import json
import torch
from grpcxx import parallel

training, _validation = torch.utils.data.random_split(range(1000), [800, 200])
found = parallel.group().all_gather(torch.tensor(training.indices).reshape(1, -1))
print(json.dumps(found.tolist()))
"""
    )
    first, second = trained("-m", "grpcxx.parallel", "-n", 2, script)
    assert first == second, "no rank trains with what another validates with"
    assert first != trained("-m", "grpcxx.parallel", "-n", 2, script)[0], "each job draws its own"


def of_ranks(code):
    """What two ranks return, of which each runs in a thread."""
    from ranks import together

    failures = []

    def run(group):
        try:
            return code(group)
        except BaseException as failure:
            failures.append(failure)

    results = together(2, run)
    if failures:
        raise failures[0]
    return results


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_model_that_is_thawed_after_it_was_wrapped_has_the_gradients_of_all():
    import grpcxx.torch

    def code(group):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        model[0].requires_grad_(False)
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        wrapped(torch.full((1, 3), group.rank + 1.0)).sum().backward()
        assert model[0].weight.grad is None
        model[0].requires_grad_(True)
        model.zero_grad(set_to_none=True)
        wrapped(torch.full((1, 3), group.rank + 1.0)).sum().backward()
        return gradients(model), model

    (first, model), (second, _) = of_ranks(code)
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    ((model(torch.ones(1, 3)) + model(torch.full((1, 3), 2.0))).sum() / 2).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(first[name], gradient)
        assert torch.equal(first[name], second[name]), name


def test_a_layer_that_is_added_after_the_model_was_wrapped_is_that_of_rank_0():
    import grpcxx.torch

    def code(group):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2))
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        model.add_module("head", torch.nn.Linear(2, 1))
        wrapped(torch.full((1, 3), group.rank + 1.0)).sum().backward()
        return [*model.parameters(), *gradients(model).values()]

    for first, second in zip(*of_ranks(code)):
        assert torch.equal(first, second)


def there_and_back(model):
    model.half()
    model.float()


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("change", [torch.nn.Module.double, torch.nn.Module.bfloat16, there_and_back])
def test_a_model_that_gets_another_type_after_it_was_wrapped_has_the_gradients_of_all(change, is_used):
    import grpcxx.torch

    def code(group):
        model = torch.nn.Linear(2, 1)
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        if is_used:
            wrapped(torch.ones(1, 2)).sum().backward()
            model.zero_grad(set_to_none=True)
        change(wrapped)
        x = torch.full((1, 2), (group.rank + 1) / 3, dtype=model.weight.dtype)
        wrapped(x).sum().backward()
        return model.weight

    for weight in of_ranks(code):
        # A third travels in its own type, and not in a narrower one.
        exact = 2 * torch.finfo(weight.dtype).eps
        torch.testing.assert_close(weight.grad, torch.full_like(weight, 0.5), rtol=exact, atol=0)


def test_a_model_may_be_wrapped_where_no_gradients_are_taken():
    import grpcxx.torch

    def code(group):
        model = torch.nn.Linear(2, 1)
        # Each thread has a mode of its own.
        with torch.no_grad():
            wrapped = grpcxx.torch.DataParallel(model, group=group)
        wrapped(torch.full((1, 2), group.rank + 1.0)).sum().backward()
        return model.weight.grad

    for found in of_ranks(code):
        assert found.tolist() == [[1.5, 1.5]]


@pytest.mark.parametrize("how", ["frozen", "unused"])
def test_what_no_rank_has_used_is_not_moved_by_an_optimizer(how):
    import grpcxx.torch

    def code(group):
        model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        model.forward = lambda x: model[0](x) if how == "unused" else model[1](model[0](x))
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
        if how == "frozen":
            model[1].requires_grad_(False)
        before = model[1].weight.detach().clone()
        for _ in range(2):
            output = wrapped(torch.ones(1, 2)).sum()
            if group.rank == 1:
                output = output + model[2](torch.ones(1, 2)).sum()
            output.backward()
            optimizer.step()
        assert model[1].weight.grad is None
        assert torch.equal(model[1].weight, before)
        return model[2].weight.grad

    first, second = of_ranks(code)
    assert torch.equal(first, second) and first.abs().sum() > 0, "one rank has used it"


def test_sparse_gradients_of_embeddings_are_means_and_stay_sparse():
    import grpcxx.torch

    # One rank has looked up what the other has, and more; at last one alone has looked anything up.
    looked_up = [[[1, 2, 2], [1, 3, 1]], [[0, 1, 1], None]]

    def step(model, optimizer, rows):
        optimizer.zero_grad(set_to_none=True)
        model(rows).backward()
        optimizer.step()

    torch.manual_seed(0)
    made = Words()

    def code(group):
        model, alone = copy.deepcopy(made), copy.deepcopy(made)
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        for rows in looked_up:
            step(wrapped, torch.optim.SparseAdam(list(model.words.parameters())), rows[group.rank])
            step(lambda rows: sum(map(alone, rows)) / 2, torch.optim.SparseAdam(list(alone.words.parameters())), rows)
            for name, gradient in gradients(alone).items():
                found = gradients(model)[name]
                assert found.layout == gradient.layout
                torch.testing.assert_close(found.to_dense(), gradient.to_dense())
            torch.testing.assert_close(model.words.weight, alone.words.weight)
        return model.words.weight

    first, second = of_ranks(code)
    assert torch.equal(first, second)


class Words(torch.nn.Module):
    """An embedding whose gradient is sparse, and a layer behind it."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1)

    def forward(self, rows):
        found = torch.zeros(1, 2) if rows is None else self.words(torch.tensor(rows))
        return self.head(found).square().sum()


def test_a_gradient_that_is_sparse_on_some_ranks_alone_is_dense():
    import grpcxx.torch

    def code(group):
        torch.manual_seed(0)
        model = Words()
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        loss = wrapped([1, 2])
        if group.rank == 1:
            loss = loss + model.words.weight.sum()
        loss.backward()
        assert model.words.weight.grad.layout == torch.strided
        return model.words.weight.grad

    first, second = of_ranks(code)
    assert torch.equal(first, second)


# A layer that fills more than a bucket of 1 MiB.
WIDE = 600


class Shared(torch.nn.Module):
    """A block that is used twice, each time under a checkpoint, and layers before and behind."""

    def __init__(self, is_reentrant):
        super().__init__()
        self.first, self.block, self.head = (torch.nn.Linear(WIDE, WIDE) for _ in range(3))
        self.is_reentrant = is_reentrant

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.is_reentrant)
        return self.head(x)


@pytest.mark.parametrize("is_reentrant, bucket_mib", [(False, 1), (True, 16)])
def test_a_block_that_is_used_twice_has_the_gradient_of_both(is_reentrant, bucket_mib):
    import grpcxx
    import grpcxx.torch

    torch.manual_seed(0)
    model = Shared(is_reentrant)
    alone = copy.deepcopy(model)
    alone(torch.ones(1, WIDE)).sum().backward()
    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        grpcxx.torch.DataParallel(model, group=group, bucket_mib=bucket_mib)(torch.ones(1, WIDE)).sum().backward()
    for name, gradient in gradients(alone).items():
        torch.testing.assert_close(gradients(model)[name], gradient)


def test_a_gradient_that_comes_when_its_bucket_is_gone_is_refused_by_name():
    import grpcxx
    import grpcxx.torch

    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        wrapped = grpcxx.torch.DataParallel(Shared(True), group=group, bucket_mib=1)
        with pytest.raises(grpcxx.Error, match=r"block\.(weight|bias) .*use_reentrant=False") as caught:
            wrapped(torch.ones(1, WIDE)).sum().backward()
        assert caught.value.code is grpcxx.Code.FAILED_PRECONDITION


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("uses", [1, 2])
def test_a_whole_model_under_checkpoints_has_the_gradients_of_all(is_reentrant, uses, monkeypatch):
    from torch.utils.checkpoint import checkpoint

    import grpcxx.torch

    inputs = torch.rand(2, 4, WIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def run(model, x):
        x = x.clone().requires_grad_()
        for _ in range(uses):
            x = checkpoint(model, x, use_reentrant=is_reentrant)
        x.square().sum().backward()

    torch.manual_seed(0)
    # The gradient of what only the last use has is there in the midst of a backward pass.
    made = torch.nn.Sequential(torch.nn.Linear(WIDE, WIDE), torch.nn.BatchNorm1d(WIDE), Last(uses)).double()

    def code(group):
        model, alone = copy.deepcopy(made), copy.deepcopy(made)
        wrapped = grpcxx.torch.DataParallel(model, group=group, bucket_mib=1)
        # No pass is taken for one that has failed.
        monkeypatch.setattr(group, "_refuse", None)
        for _ in range(2):
            for rank in range(group.size):
                alone[2].runs = 0
                run(alone, inputs[rank])
            model[2].runs = 0
            run(wrapped, inputs[group.rank])
        return gradients(alone), gradients(model)

    for alone, found in of_ranks(code):
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name], gradient / 2)


class Last(torch.nn.Module):
    """A layer that one use of a model has, and no use before."""

    def __init__(self, use):
        super().__init__()
        self.layer, self.use, self.runs = torch.nn.Linear(WIDE, WIDE), use, 0

    def forward(self, x):
        self.runs += 1
        return self.layer(x) if self.runs == self.use or self.runs == self.use + 1 else x


def test_a_layer_that_is_taken_out_of_a_model_is_let_go():
    import grpcxx
    import grpcxx.torch

    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        wrapped(torch.ones(1, 3)).sum().backward()
        gone = weakref.ref(model[1].weight)
        del model[1]
        wrapped(torch.ones(1, 3)).sum().backward()
        gc.collect()
        assert gone() is None


def test_passes_without_gradients_of_one_rank_wait_for_none_and_leave_the_next_step_as_it_is():
    import grpcxx.torch

    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

    def code(group):
        model, alone = copy.deepcopy(made), copy.deepcopy(made)
        wrapped = grpcxx.torch.DataParallel(model, group=group)
        inputs = [torch.arange(12.0).reshape(4, 3).cos() + rank for rank in range(group.size)]

        def look():
            if group.rank == 1:
                wrapped.eval()
                with torch.no_grad():
                    wrapped(inputs[1])
                wrapped.train()

        for _ in range(2):
            look()
            output = wrapped(inputs[group.rank])
            look()
            output.sum().backward()
            look()
            for one in inputs:
                (alone(one).sum() / 2).backward()
        return gradients(alone), gradients(model)

    for alone, found in of_ranks(code):
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@needs_cuda
def test_tensors_of_a_gpu_are_refused_by_one_clear_line_and_pinned_ones_are_sent():
    import grpcxx

    with grpcxx.Server("127.0.0.1:0", job="ps") as server, grpcxx.Client(server.address) as client:
        on_gpu = torch.arange(6.0, device="cuda").reshape(2, 3)
        with pytest.raises(grpcxx.Error, match="lies in memory of cuda:0, .* copy it to the CPU") as caught:
            client.push("x", on_gpu)
        assert caught.value.code is grpcxx.Code.INVALID_ARGUMENT
        with pytest.raises(grpcxx.Error, match="out must be a NumPy array"):
            client.pull("x", out=on_gpu)
        pinned = on_gpu.cpu().pin_memory()
        client.push("x", pinned)
        received = torch.zeros(2, 3).pin_memory()
        client.pull("x", out=received.numpy())
        assert torch.equal(received, pinned)


def test_models_elsewhere_than_on_the_cpu_and_gpus_are_refused_by_name():
    import grpcxx
    import grpcxx.torch

    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(grpcxx.Error, match=r"weight lies in memory of meta.*\.cuda\(\)"):
        grpcxx.torch.DataParallel(model)


class Parts(torch.nn.Module):
    """Two parameters, of which a pass may use the first alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, uses_both):
        return self.first + self.second if uses_both else self.first


def test_models_of_one_backward_pass_keep_their_gradients_apart():
    import grpcxx.torch

    def code(group):
        one, other = (grpcxx.torch.DataParallel(Parts(), group=group) for _ in range(2))
        # One rank ends the bucket of one model first, and the other that of the other.
        (one(group.rank == 1) + 10 * other(group.rank == 0)).backward()
        return [parameter.grad.item() for model in (one, other) for parameter in model.parameters()]

    assert of_ranks(code) == [[1.0, 0.5, 10.0, 5.0]] * 2


def test_more_models_than_a_group_has_tags_for_train_one_after_the_other():
    import grpcxx
    import grpcxx.torch

    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        for _ in range(1030):
            grpcxx.torch.DataParallel(torch.nn.Linear(1, 1), group=group)(torch.ones(1, 1)).sum().backward()


def test_a_copy_of_a_model_joins_with_its_first_pass():
    import grpcxx.torch

    def code(group):
        wrapped = grpcxx.torch.DataParallel(torch.nn.Linear(2, 1), group=group)
        if group.rank == 0:
            # One rank keeps means of its own, and saves the model.
            kept = torch.optim.swa_utils.AveragedModel(wrapped)
            kept.update_parameters(wrapped)
            file = io.BytesIO()
            torch.save(wrapped, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            assert torch.equal(loaded.module.weight, wrapped.module.weight)
        copied = copy.deepcopy(wrapped)
        for model in (copied, wrapped):
            model(torch.full((1, 2), group.rank + 1.0)).sum().backward()
        return [model.module.weight.grad.tolist() for model in (copied, wrapped)]

    assert of_ranks(code) == [[[[1.5, 1.5]]] * 2] * 2


def test_a_backward_pass_that_fails_is_forgotten(monkeypatch):
    import grpcxx
    import grpcxx.torch

    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        model = grpcxx.torch.DataParallel(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)), group=group)
        combined = []
        reduce = group.all_reduce
        monkeypatch.setattr(group, "all_reduce", lambda *args, **named: combined.append(1) or reduce(*args, **named))

        def fail(gradient):
            raise RuntimeError("no gradient here")

        for _ in range(2):
            output = model(torch.ones(4, 3))
            hook = output.grad_fn.next_functions[1][0].register_prehook(fail)
            with pytest.raises(RuntimeError, match="no gradient here"):
                output.sum().backward()
            hook.remove()
            combined.clear()
            model(torch.ones(4, 3)).sum().backward()
            assert combined == [1], "gradients are combined again"


def test_a_rank_whose_backward_pass_failed_is_not_taken_for_the_next_one():
    from ranks import together

    import grpcxx
    import grpcxx.torch

    def code(group):
        torch.manual_seed(0)
        # Another model has the first tag.
        grpcxx.torch.DataParallel(torch.nn.Linear(1, 1), group=group)
        layers = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 600))
        model = grpcxx.torch.DataParallel(layers, group=group, bucket_mib=1)
        output = model(torch.ones(1, 600))
        if group.rank == 1:

            def fail(gradient):
                raise RuntimeError("no gradient here")

            layers[0].weight.register_hook(fail)
            with pytest.raises(RuntimeError, match="no gradient here"):
                output.sum().backward()
            model(torch.ones(1, 600))
        else:
            with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
                output.sum().backward()
        with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
            group.all_reduce([1.0])
        return True

    assert together(2, code) == [True, True]
