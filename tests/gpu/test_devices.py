"""Calls on the second device: device, stream, memory, graphs, threads, processes.

The tests need two GPUs of one model, because equal calls must have equal bits.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import gdpa

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

HERE, THERE = torch.device("cuda:0"), torch.device("cuda:1")
LENGTHS = [200, 0, 1, 399]


def offsets(lengths: list[int], device: torch.device | str) -> Tensor:
    """Creates the tensor on the CPU, so that no other device is used."""
    return torch.tensor([0, *lengths], device="cpu").cumsum(0).int().to(device)


def operands(device: torch.device, seed: int = 0, rows: int = sum(LENGTHS), head_dim: int = 64) -> list[Tensor]:
    """The same numbers on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    tensors = [torch.randn(rows, 2, head_dim, generator=generator, device="cpu") for _ in range(3)]
    return [tensor.to(device, torch.bfloat16).requires_grad_() for tensor in tensors]


def results(tensors: list[Tensor], lengths: list[int] = LENGTHS, **keywords: object) -> list[Tensor]:
    """O, dQ, dK and dV; deterministic, so that equal calls have equal bits."""
    cu_seqlens = offsets(lengths, tensors[0].device)
    output = gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, deterministic=True, **keywords)  # type: ignore[arg-type]
    return [output.detach(), *torch.autograd.grad(output, tensors, torch.ones_like(output))]


def assert_equal_bits(actual: list[Tensor], expected: list[Tensor], device: torch.device) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.device == device
        assert torch.equal(one.cpu(), other.cpu())


@pytest.fixture
def expected() -> list[Tensor]:
    with torch.cuda.device(HERE):
        return results(operands(HERE))


@pytest.mark.parametrize("current", [HERE, THERE], ids=str)
@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_call_runs_on_the_device_and_the_stream_of_its_tensors(
    current: torch.device, stream: str, expected: list[Tensor]
) -> None:
    tensors = operands(THERE)
    chosen = torch.cuda.default_stream(THERE) if stream == "default" else torch.cuda.Stream(THERE)
    torch.cuda.synchronize(THERE)
    with torch.cuda.stream(chosen), torch.cuda.device(current):
        actual = results(tensors)
        assert torch.cuda.current_device() == current.index
    torch.cuda.synchronize(THERE)
    assert_equal_bits(actual, expected, THERE)


def test_a_call_waits_for_what_is_before_it_on_the_stream_of_its_device(expected: list[Tensor]) -> None:
    """A stream of the second device writes the operands late, while the first device is current."""
    results(operands(THERE))  # loads the kernels
    tensors = operands(THERE)
    late = [torch.zeros_like(tensor) for tensor in tensors]
    torch.cuda.synchronize(THERE)
    stream = torch.cuda.Stream(THERE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # clocks: about .1 s
        with torch.no_grad():
            for tensor, source in zip(late, tensors, strict=True):
                tensor.copy_(source)
        for tensor in late:
            tensor.requires_grad_()
        with torch.cuda.device(HERE):
            actual = results(late)
    torch.cuda.synchronize(THERE)
    assert_equal_bits(actual, expected, THERE)


def test_the_autograd_thread_of_the_second_device_runs_backward_there(expected: list[Tensor]) -> None:
    """PyTorch runs loss.backward() in a separate thread for each device, and this device is current in the thread."""
    tensors = operands(THERE)
    cu_seqlens = offsets(LENGTHS, THERE)
    with torch.cuda.device(HERE):
        gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, deterministic=True).sum().backward()
    gradients = [tensor.grad for tensor in tensors]
    assert_equal_bits([gradient for gradient in gradients if gradient is not None], expected[1:], THERE)


def test_one_backward_pass_through_both_devices() -> None:
    """The autograd graph passes from one device to the other, as in a model with layers on two devices."""
    ours, theirs = operands(HERE), operands(THERE, seed=1)

    def through(first: list[Tensor], second: list[Tensor]) -> Tensor:
        device, other = first[0].device, second[0].device
        cu, cu_other = offsets(LENGTHS, device), offsets(LENGTHS, other)
        middle = gdpa.varlen_attention(*first, cu, cu, deterministic=True).to(other)
        return gdpa.varlen_attention(middle, *second[1:], cu_other, cu_other, deterministic=True)

    same = operands(HERE, seed=1)
    on_one = torch.autograd.grad(through(ours, same).sum(), [*ours, *same[1:]])
    on_two = torch.autograd.grad(through(ours, theirs).sum(), [*ours, *theirs[1:]])
    for one, other in zip(on_one, on_two, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@pytest.mark.parametrize("head_dim", [64, 128])
def test_two_threads_use_two_devices_at_the_same_time(head_dim: int) -> None:
    """Two threads load kernels at the same time, each on its own device. No other test loads these kernels."""
    lengths = [1500, 300, 257, 2100]
    activation = f"tanh(s) * 0.77{head_dim}"
    outcomes: dict[torch.device, list[list[Tensor]]] = {}
    failures: list[BaseException] = []
    together = threading.Barrier(2)

    def work(device: torch.device) -> None:
        try:
            torch.cuda.set_device(device)  # for this thread
            tensors = operands(device, rows=sum(lengths), head_dim=head_dim)
            torch.cuda.synchronize(device)  # the next stream does not wait for the stream of the operands
            with torch.cuda.stream(torch.cuda.Stream(device)):
                together.wait()
                outcomes[device] = [results(tensors, lengths, activation=activation) for _ in range(20)]
            torch.cuda.synchronize(device)
        except BaseException as failure:
            failures.append(failure)
            together.abort()

    threads = [threading.Thread(target=work, args=(device,)) for device in (HERE, THERE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    first = outcomes[HERE][0]
    for device, rounds in outcomes.items():
        for actual in rounds:
            assert_equal_bits(actual, first, device)


def test_kernels_are_loaded_for_each_device() -> None:
    """A graph of the second device cannot use kernels that are loaded only on the first device."""
    keywords = {"activation": "tanh(s) * 0.4321"}
    results(operands(HERE), **keywords)
    tensors, cu_seqlens = [t.detach() for t in operands(THERE)], offsets(LENGTHS, THERE)
    with (
        torch.cuda.device(THERE),
        pytest.raises(RuntimeError, match="run the same call once before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(THERE)),
    ):
        gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, **keywords)  # type: ignore[arg-type]


def test_a_graph_of_the_second_device_replays_the_same_bits(expected: list[Tensor]) -> None:
    tensors = operands(THERE)
    cu_seqlens = offsets(LENGTHS, THERE)
    gdpa.warmup(gdpa.varlen_attention, *tensors, cu_seqlens, cu_seqlens, deterministic=True)

    def attend() -> list[Tensor]:
        output = gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, deterministic=True)
        return [output.detach(), *torch.autograd.grad(output, tensors, torch.ones_like(output))]

    with torch.cuda.device(THERE):
        attend()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(THERE)):
            captured = attend()
    with torch.cuda.device(HERE):
        for _ in range(20):
            for result in captured:
                result.zero_()
            torch.cuda.synchronize(THERE)
            with torch.cuda.device(THERE):
                graph.replay()
            torch.cuda.synchronize(THERE)
            assert_equal_bits(captured, expected, THERE)


def test_the_workspace_lies_on_the_device_of_the_call() -> None:
    """Backward allocates fp32 accumulators of dQ on the device of the call, and no memory on the first device."""
    lengths = [3000, 2000]
    tensors = operands(THERE, rows=sum(lengths))
    taken = []
    # An autograd thread may still hold earlier results and release them during the measurement, so the test uses the
    # maximum of several measurements.
    for _ in range(5):
        torch.cuda.synchronize(THERE)
        before = {}
        for device in (HERE, THERE):
            torch.cuda.reset_peak_memory_stats(device)
            before[device] = torch.cuda.memory_allocated(device)
        with torch.cuda.device(HERE):
            kept = results(tensors, lengths)
        torch.cuda.synchronize(THERE)
        assert torch.cuda.max_memory_allocated(HERE) == before[HERE]
        taken.append(torch.cuda.max_memory_allocated(THERE) - before[THERE])
        written = sum(result.numel() * result.element_size() for result in kept)
        del kept
    sums = 4 * tensors[0].numel()
    assert max(taken) >= written + sums


@pytest.mark.parametrize("moved", ["query", "key", "value", "cu_seq_q", "cu_seq_k"])
def test_operands_on_two_devices_are_refused(moved: str) -> None:
    query, key, value = (tensor.detach() for tensor in operands(HERE))
    cu_seqlens = offsets(LENGTHS, HERE)
    arguments = {"query": query, "key": key, "value": value, "cu_seq_q": cu_seqlens, "cu_seq_k": cu_seqlens}
    arguments[moved] = arguments[moved].to(THERE)
    with pytest.raises(TypeError, match="move all tensors to one device"):
        gdpa.varlen_attention(**arguments)  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _train(rank: int, port: int, folder: str) -> None:
    """A process of a data-parallel step with its own sequences. NCCL averages the gradients of the shared weights."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        model = _model().to(f"cuda:{rank}")
        parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        rows, lengths = _batch()[rank]
        parallel(rows.to(f"cuda:{rank}"), offsets(lengths, f"cuda:{rank}")).float().square().sum().backward()
        torch.save([p.grad.cpu() for p in model.parameters() if p.grad is not None], Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(64, 3 * 2 * 32, bias=False)

    def forward(self, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        projected = self.project(rows).bfloat16().unflatten(-1, (3, 2, 32))
        return gdpa.varlen_attention(*projected.unbind(1), cu_seqlens, cu_seqlens)


def _model() -> _Attention:
    torch.manual_seed(3)
    with torch.device("cpu"):
        return _Attention()


def _batch() -> list[tuple[Tensor, list[int]]]:
    generator = torch.Generator("cpu").manual_seed(5)
    lengths = [[300, 20, 77], [150, 260]]
    return [(torch.randn(sum(some), 64, generator=generator, device="cpu"), some) for some in lengths]


def test_two_processes_average_their_gradients_by_nccl(tmp_path: Path) -> None:
    """DistributedDataParallel runs its hooks while the autograd threads are in backward."""
    if not dist.is_nccl_available():
        pytest.skip("this PyTorch has no NCCL")
    torch.multiprocessing.spawn(_train, args=(_free_port(), str(tmp_path)), nprocs=2)
    per_process = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    model = _model().to(HERE)
    run: Callable[..., Tensor] = model
    for rows, lengths in _batch():
        run(rows.to(HERE), offsets(lengths, HERE)).float().square().sum().backward()
    for mine, other, parameter in zip(*per_process, model.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(mine, other)
        average = parameter.grad.cpu() / 2
        assert (mine - average).norm() <= 1e-2 * average.norm()
