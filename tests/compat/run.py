"""Runs the tests of a checkout of another package over gdpa.compat (README.md)."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import itertools
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
FBGEMM_FILES = ["fbgemm_gpu/experimental/hstu/test/hstu_test.py"]
FBGEMM_CLASSES = ("HSTU16Test", "HSTUPagedKVTest")
RSE_FILES = ["corelib/hstu/test.py", "examples/hstu/test/hstu_attn/test_fbgemm_hstu_smoke.py"]
GR = "generative_recommenders"
GR_FILES = ["ops/tests/hstu_attention_test.py", "ops/tests/hstu_attention_tma_test.py"]
TER = "tzrec"
TER_FILES = ["ops/hstu_attention_test.py"]
MKL = "ads_mkl.ops.oss.gdpa.triton"
MKL_FILES = ["test_triton_generalized_dot_product_attention.py"]
# These tests replace parts of Meta's module by mocks and count their calls.
MKL_MOCKS = ["gdpa_calls_cpu_version", "gdpa_calls_triton_op", "gdpa_makes_tensors_contiguous"]

calls: Counter[str] = Counter()


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, whose calls are counted."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **named)

    return call


def load(path: Path, name: str) -> ModuleType:
    """Imports a file under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"run.py: expected a test file {path}, found none; name a checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def fbgemm(options: argparse.Namespace) -> Iterator[ModuleType]:
    import gdpa

    gdpa.compat.install("hstu")
    import hstu

    print("replaced: the module hstu and the operators fbgemm::hstu_varlen_{fwd,bwd}_{80,90}")
    for name in ("hstu_attn_varlen_func", "hstu_attn_qkvpacked_func"):
        setattr(hstu, name, counted(name, getattr(hstu, name)))
    for number, file in enumerate(options.files or FBGEMM_FILES):
        module = load(options.checkout / file, f"fbgemm_test_{number}")
        for name in ("generate_input", "generate_paged_kv_input"):
            if hasattr(module, name):
                setattr(module, name, limited(getattr(module, name), options.most_tokens))
        yield module


class Sample:
    """A plugin of pytest that keeps a random sample of the cases of each test function."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        random = Random(self.options.seed)
        kept = []
        for name, cases in itertools.groupby(items, lambda item: item.originalname):
            all_cases = list(cases)
            if self.options.match not in name or any(word in name for word in self.options.skip):
                print(f"left out: {name}")
                continue
            count = min(self.options.cases, len(all_cases))
            print(f"{name}: {count} of {len(all_cases)} cases, seed {self.options.seed}")
            kept += random.sample(all_cases, count)
        items[:] = kept


def recsys_examples(options: argparse.Namespace) -> int:
    """Runs pytest, because these tests are functions with parameters. Returns its exit code."""
    import pytest

    import gdpa

    prepare_fbgemm()
    gdpa.compat.install("hstu")
    print("replaced: the modules hstu, hstu_attn and hstu_attn_interface, and the operators fbgemm::hstu_varlen_*")
    # The code of these packages imports packages for training, which the tests do not use.
    for name, folder in (("commons", "commons"), ("commons.utils", "commons/utils"), ("ops", "hstu/ops")):
        package = ModuleType(name)
        package.__path__ = [str(options.checkout / "examples" / folder)]
        sys.modules[name] = package
    print(
        "stubs: the packages commons, commons.utils and ops of recsys-examples, without the code of their __init__.py"
    )
    files = [str(options.checkout / file) for file in options.files or RSE_FILES]
    arguments = ["-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider"]
    return int(pytest.main([*arguments, *files], plugins=[Sample(options)]))


def limited(generate: Callable[..., Any], most: int | None) -> Callable[..., Any]:
    """Returns the generator of the inputs of an example, which rejects an example with longer sequences."""
    from hypothesis import assume

    @functools.wraps(generate)
    def call(**named: Any) -> Any:
        tokens = named["max_seq_len_k"] + named.get("max_context_len", 0) + named["max_target_len"]
        if most is not None and tokens > most:
            calls["examples left out by --most-tokens"] += 1
            assume(False)
        return generate(**named)

    return call


def generative_recommenders(options: argparse.Namespace) -> Iterator[ModuleType]:
    prepare_generative_recommenders(options.checkout)
    if options.original:
        print("replaced: nothing, because of --original")
    else:
        replace_kernels()
    if options.device == "cpu":
        replace_helpers()
    for file in options.files or GR_FILES:
        yield importlib.import_module(".".join((GR, *Path(file).with_suffix("").parts)))


def torcheasyrec(options: argparse.Namespace) -> Iterator[ModuleType]:
    import gdpa

    gdpa.compat.install("hstu")
    prepare_fbgemm()
    prepare_torcheasyrec(options.checkout)
    cutlass = importlib.import_module(f"{TER}.ops._cuda.cutlass_hstu_attention")
    setattr(cutlass, name := "hstu_attn_varlen_func", counted(name, getattr(cutlass, name)))
    theirs = importlib.import_module(f"{TER}.ops._triton.triton_hstu_attention")
    for function in (triton_hstu_mha, triton_cached_hstu_mha):
        setattr(theirs, function.__name__, counted(function.__name__, function))
    print(
        "replaced: the module hstu, the operators fbgemm::hstu_varlen_*, and triton_hstu_mha and triton_cached_hstu_mha"
    )
    if options.device == "cpu":
        jagged = importlib.import_module(f"{TER}.ops._triton.triton_jagged_tensors")
        python = importlib.import_module(f"{TER}.ops._pytorch.pt_jagged_tensors")
        for name in ("split_2D_jagged", "concat_2D_jagged"):
            setattr(jagged, f"triton_{name}", getattr(python, f"pytorch_{name}"))
        print("stubs: split_2D_jagged and concat_2D_jagged run their PyTorch code, because the CPU runs no Triton")
    for file in options.files or TER_FILES:
        yield importlib.import_module(".".join((TER, *Path(file).with_suffix("").parts)))


def triton_hstu_mha(max_seq_len: int, alpha: float, *, scaling_seqlen: int = -1, **named: Any) -> Any:
    """TorchEasyRec's function. It has the arguments of generative-recommenders and the argument scaling_seqlen.

    In gdpa, max_seq_len is only the divisor of the output.
    """
    from gdpa.compat.generative_recommenders import hstu_mha

    return hstu_mha(max_seq_len if scaling_seqlen == -1 else scaling_seqlen, alpha, **named)


def triton_cached_hstu_mha(max_seq_len: int, alpha: float, *, scaling_seqlen: int = -1, **named: Any) -> Any:
    """The same for delta_hstu_mha."""
    from gdpa.compat.generative_recommenders import delta_hstu_mha

    return delta_hstu_mha(max_seq_len if scaling_seqlen == -1 else scaling_seqlen, alpha, **named)


def prepare_torcheasyrec(checkout: Path) -> None:
    """Makes the tests of the operators importable without the packages for training and export."""
    package = ModuleType(TER)
    package.__path__ = [str(checkout / TER)]
    sys.modules[TER] = package
    names = {
        f"{TER}.acc.aot_utils": ["export_model_aot", "load_model_aot"],
        f"{TER}.models.model": ["ScriptWrapper"],
        f"{TER}.utils.export_util": ["split_model"],
    }
    others = {"torchrec": ["JaggedTensor", "KeyedTensor"], "torchrec.fx": ["symbolic_trace"], "pandas": ["DataFrame"]}
    names |= {name: of for name, of in others.items() if importlib.util.find_spec(name.partition(".")[0]) is None}
    for name, of in names.items():
        sys.modules[name] = ModuleType(name)
        for one in of:
            setattr(sys.modules[name], one, object)
    print(f"stubs: the package {TER} without the code of its __init__.py, and empty: {', '.join(names)}")


def ads_mkl(options: argparse.Namespace) -> Iterator[ModuleType]:
    import gdpa

    gdpa.compat.install("ads_mkl")
    print(f"replaced: the module {MKL}.triton_generalized_dot_product_attention and its operators")
    tests = options.checkout / "gdpa" / "triton" / "tests"
    module = sys.modules[f"{MKL}.triton_generalized_dot_product_attention"]
    for name in ("generalized_dot_product_attention", "cpu_generalized_dot_product_attention"):
        setattr(module, name, counted(name, getattr(module, name)))
    package = ModuleType(f"{MKL}.tests")
    package.__path__ = [str(tests)]
    sys.modules[package.__name__] = package
    options.skip = [*options.skip, *MKL_MOCKS]
    for file in options.files or MKL_FILES:
        yield load(tests / file, f"{MKL}.tests.{Path(file).stem}")


def prepare_fbgemm() -> None:
    """Registers operators of FBGEMM if FBGEMM is not installed."""
    sys.path.insert(0, str(HERE))
    import fbgemm_operators

    if stubs := fbgemm_operators.register():
        print(f"stubs: fbgemm::{', fbgemm::'.join(stubs)} in plain PyTorch, because FBGEMM is not installed")


def prepare_generative_recommenders(checkout: Path) -> None:
    """Makes the package importable without FBGEMM and torchrec."""
    sys.path.insert(0, str(checkout))
    prepare_fbgemm()
    import fbgemm_operators

    if importlib.util.find_spec("torchrec") is None:
        name = "torchrec.modules.sorted_index_select"
        for package in ("torchrec", "torchrec.modules", name):
            sys.modules[package] = ModuleType(package)
        sys.modules[name].maybe_sorted_index_select = fbgemm_operators.index_select  # type: ignore[attr-defined]
        print(f"stubs: {name} in plain PyTorch, because torchrec is not installed")


def replace_kernels() -> list[str]:
    """Puts gdpa's functions in place of the Triton kernels in all modules of generative-recommenders."""
    from gdpa.compat import generative_recommenders as ours

    theirs = importlib.import_module(f"{GR}.ops.triton.triton_hstu_attention")
    importlib.import_module(f"{GR}.ops.hstu_compute")
    names = [
        "triton_hstu_mha", "triton_cached_hstu_mha", "triton_hstu_attention_fwd", "triton_hstu_attention_bwd",
    ]  # fmt: skip
    replaced = []
    for name in names:
        original, function = getattr(theirs, name), counted(name, getattr(ours, name))
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(GR) and getattr(module, name, None) is original:
                setattr(module, name, function)
                replaced.append(f"{module_name}.{name}")
    print("replaced:", ", ".join(replaced))
    return replaced


def replace_helpers() -> None:
    """Uses the PyTorch code of generative-recommenders for its helpers, because the CPU runs no Triton."""
    jagged = importlib.import_module(f"{GR}.ops.jagged_tensors")
    for name in ("split_2D_jagged", "concat_2D_jagged"):
        python = getattr(jagged, f"pytorch_{name}")

        def call(max_seq_len: int, *arguments: Any, _python: Any = python, **named: Any) -> Any:
            known = python_arguments(_python)
            return _python(*arguments, max_seq_len=max_seq_len, **{k: v for k, v in named.items() if k in known})

        setattr(jagged, f"triton_{name}", call)
    print("stubs: split_2D_jagged and concat_2D_jagged run their PyTorch code, because the CPU runs no Triton")


def python_arguments(function: Callable[..., Any]) -> set[str]:
    return set(function.__code__.co_varnames[: function.__code__.co_argcount])


class Result(unittest.TextTestResult):
    """Prints a line for each test, with its calls of the operator and its duration."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        calls.clear()
        self.began = time.perf_counter()

    def note(self, test: unittest.TestCase, outcome: str) -> None:
        counts = ", ".join(f"{name} {count}" for name, count in calls.items()) or "no calls"
        print(f"{outcome}: {test.id().rpartition('.')[2]} ({counts}; {time.perf_counter() - self.began:.0f} s)")

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed = getattr(self, "passed", 0) + 1
        self.note(test, "passed" if calls else "passed without a call of the operator")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}:")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.note(test, "FAILED")
        self.show(err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.note(test, "FAILED with an error")
        self.show(err)

    @staticmethod
    def show(err: Any) -> None:
        """Prints the message now, because a run that is stopped does not print the list of errors at the end."""
        for line in "".join(traceback.format_exception_only(err[0], err[1])).strip().splitlines()[:20]:
            print(f"    {line}")


def tests_of(module: ModuleType, options: argparse.Namespace) -> Iterator[unittest.TestCase]:
    """Yields the tests in the order of the file, as pytest does: a test may leave another setting, such as tf32."""
    classes = options.classes or (FBGEMM_CLASSES if options.package == "fbgemm" else None)
    for case in vars(module).values():
        is_own = isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__
        if not is_own:
            continue
        if classes is not None and case.__name__ not in classes:
            print(f"left out: {case.__name__}")
            continue
        order = list(vars(case))
        names = unittest.TestLoader().getTestCaseNames(case)
        for name in sorted(names, key=lambda name: order.index(name) if name in order else len(order)):
            if options.match not in name:
                continue
            if any(word in name for word in options.skip):
                print(f"left out by --skip: {case.__name__}.{name}")
                continue
            yield case(name)


PACKAGES: dict[str, Callable[[argparse.Namespace], Iterator[ModuleType]]] = {
    "fbgemm": fbgemm,
    "generative-recommenders": generative_recommenders,
    "torcheasyrec": torcheasyrec,
    "ads-mkl": ads_mkl,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=[*PACKAGES, "recsys-examples"])
    parser.add_argument("checkout", type=Path, help="the folder of the checkout")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: the CPU answers to cuda")
    parser.add_argument("--files", nargs="+", help="test files of the checkout, or of its package")
    parser.add_argument("--classes", nargs="+", help="test classes; FBGEMM: " + ", ".join(FBGEMM_CLASSES))
    parser.add_argument("--match", default="", help="only tests with this text in their names")
    parser.add_argument("--skip", nargs="+", default=[], help="no tests with one of these texts in their names")
    parser.add_argument("--capability", help="the compute capability that torch.cuda returns, such as 8.0")
    parser.add_argument("--most-tokens", type=int, help="leaves out examples of FBGEMM with longer sequences")
    parser.add_argument("--cases", type=int, default=40, help="recsys-examples: cases of each test function (40)")
    parser.add_argument("--seed", type=int, default=0, help="recsys-examples: selects the cases (0)")
    parser.add_argument(
        "--original", action="store_true",
        help="generative-recommenders: its own kernels, to tell a failure of gdpa from a failure of the package",
    )  # fmt: skip
    parser.add_argument("--packages", type=Path, help="a folder with further Python packages, such as hypothesis")
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    if options.original and (options.package, options.device) != ("generative-recommenders", "cuda"):
        got = f"{options.package} on {options.device}"
        parser.error(f"expected generative-recommenders on cuda with --original, got {got}")
    if not options.checkout.is_dir():
        parser.error(f"expected the folder of a checkout, got {options.checkout}")
    return options


def main() -> int:
    options = parse()
    if options.packages:
        sys.path.insert(0, str(options.packages.resolve()))
    import hypothesis
    import hypothesis.reporting
    import torch

    import gdpa

    # The tests keep their own number of examples. Rejected examples are no reason to stop.
    hypothesis.settings.register_profile("peers", suppress_health_check=list(hypothesis.HealthCheck), database=None)
    hypothesis.settings.load_profile("peers")
    capability = tuple(int(number) for number in options.capability.split(".")) if options.capability else None
    if options.device == "cpu":
        sys.path.insert(0, str(HERE))
        import cuda_on_cpu

        cuda_on_cpu.pretend(options.checkout, capability or (9, 0))
        print(f"stubs: the CPU answers to cuda, with capability {capability or (9, 0)}")
    elif capability:
        torch.cuda.get_device_capability = lambda *_: capability
        print(f"stubs: torch.cuda.get_device_capability returns {capability}")
    print(f"gdpa {gdpa.__version__}, torch {torch.__version__}, {options.checkout}")
    if options.package == "recsys-examples":
        return recsys_examples(options)
    modules = PACKAGES[options.package](options)
    suite = unittest.TestSuite(test for module in modules for test in tests_of(module, options))
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result, verbosity=0)
    with hypothesis.reporting.with_reporter(lambda _: None):  # it prints every example
        result: Any = runner.run(suite)
    failed = len(result.failures) + len(result.errors)
    print(
        f"{result.testsRun} run, {getattr(result, 'passed', 0)} passed, {failed} failed, {len(result.skipped)} skipped"
    )
    return 1 if failed or result.testsRun == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
