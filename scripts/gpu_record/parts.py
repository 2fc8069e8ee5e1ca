"""The parts of the record: their programs, tests and settings, and the sources that they cover."""

from __future__ import annotations

from dataclasses import dataclass

# The tools of compute-sanitizer.
SANITIZERS = ["racecheck", "memcheck", "initcheck", "synccheck"]

# The tests of gpu_problems_test with random scores, and with mask expressions and layouts.
SCORES = "*/score_*"
MASKS = "*/mask_*:*/layout_*"
# The test of a failing allocation, with a head dim of 256.
MEMORY = "GpuMemory.*"

# The least number of problems, compared with fp64, in all runs of the parts without compute-sanitizer. One run draws
# about 1,800.
LEAST_PROBLEMS = 1500

# The kernels of each family, as patterns of files in kernels/. A generated source includes headers of common/, and the
# header of its kernel.
PORTABLE = ("common/*.cuh", "portable/[!n]*.cuh")
HOPPER = (
    *PORTABLE,
    "hopper/forward.cuh",
    "hopper/key_schedule.cuh",
    "hopper/grad_query_accumulators.cuh",
    "pipeline/packed_layout.cuh",
    "pipeline/paged_layout.cuh",
    "pipeline/dependent_launch.cuh",
)
NARROW = (*HOPPER, "hopper/backward.cuh")
PARAMETERS = ("hopper/parameter_gradients.cuh", "hopper/stored_terms.cuh")

# The device headers that the kernels of a part may include, with everything that these headers include. The parts with
# the same key share a folder of the kernel cache, which shows that they compiled no other header.
KERNELS: dict[str, tuple[str, ...]] = {
    "functions": ("common/*.cuh",),
    "norms": ("portable/norm*.cuh",),
    "portable": PORTABLE,
    "narrow": NARROW,
    "narrow-parameters": (*NARROW, *PARAMETERS),
    "wide": (*HOPPER, "hopper/wide_backward.cuh", "hopper/parameter_gradients.cuh"),
    "all": ("*/*.cuh",),
}

# Host files of the library that only some parts use, as patterns of their paths.
OF_NORMS = ("src/gpu/kernels/norm.cpp", "src/api/norm*.cpp")
OF_HOPPER = (
    *("src/gpu/families/hopper/*.cpp", "src/gpu/kernels/hopper*.h", "src/gpu/tensor_maps.cpp"),
    *("src/gpu/kernels/key_schedule.h", "src/gpu/kernels/round_grad_query.h"),
)
OF_TORCH = ("torch/*",)

# The host files of the parts that use little of the library. What these files include belongs to them.
HOST_OF_NORMS = (
    *(
        "src/api/attention.cpp",
        "src/api/norm*.cpp",
        "src/api/message.cpp",
        "src/api/operand_checks.cpp",
        "src/api/overlap.cpp",
    ),
    *("src/gpu/kernels/norm.cpp", "src/gpu/backend.cpp", "src/gpu/plan.cpp", "src/gpu/loaded_kernels.cpp"),
    *("src/gpu/kernel.cpp", "src/gpu/driver.cpp", "src/gpu/target.cpp", "src/jit/*.cpp"),
)
HOST_OF_FUNCTIONS = (
    *("src/expression/*.cpp", "src/expression/rewrite/*.cpp", "src/codegen/*.cpp", "src/jit/*.cpp"),
    *("src/gpu/driver.cpp", "src/gpu/target.cpp"),
)

# The Python files that every pytest module uses.
PYTHON_TESTS = ("tests/gpu/conftest.py", "tests/python/random_function.py", "tests/python/reference.py")


@dataclass(frozen=True)
class Part:
    """A program of tests/gpu, or the file of a pytest module. A run draws a share of its tests."""

    program: str
    kernels: str  # a key of KERNELS
    share: float = 1.0  # the share of the tests that a run draws
    processes: int = 1  # the processes that divide these tests
    tests: str = ""  # the filter of the tests of a program
    wide: bool | None = None  # only the tests with a head dim above 128, or only the other ones
    problems: int = 1  # the number of problems in each test with random problems
    functions: int = 4  # the number of random functions
    scores: int = 2  # the number of random scores that read positions and tensors
    calls: int = 0  # the number of calls of the stress test
    sanitizer: str = ""  # the tool of compute-sanitizer under which the program runs its random problems
    shared_kilobytes: int = 0  # a limit of the shared memory of a CTA, to test the plans of smaller GPUs
    needs: str = ""  # a kind of kernels that must run, otherwise the part is not recorded
    gpus: int = 1  # the number of GPUs that the part needs and sees

    @property
    def is_python(self) -> bool:
        return self.program.endswith(".py")

    @property
    def host(self) -> tuple[str, ...]:
        """Patterns of the host files, or nothing for the whole library without `unused_host`."""
        return {"norms": HOST_OF_NORMS, "functions": HOST_OF_FUNCTIONS}.get(self.kernels, ())

    @property
    def unused_host(self) -> tuple[str, ...]:
        unused = (*OF_NORMS, *(OF_HOPPER if self.kernels == "portable" else ()))
        return () if self.is_python else (*unused, *OF_TORCH)


PROBLEMS, FORWARD = "gpu_problems_test", "hopper: forward"
BACKWARD, WIDE_BACKWARD = "hopper: backward", "hopper: wide_backward"

# In the order in which a run starts them: the longest processes first, and compute-sanitizer after the parts that
# compile the same kernels.
PARTS: dict[str, Part] = {
    "stress": Part("gpu_stress_test", "all", calls=50_000, needs=WIDE_BACKWARD),
    "conditions": Part("gpu_conditions_test", "functions"),
    "norms": Part("gpu_norm_test", "norms", share=0.4, processes=6),
    "training": Part("tests/gpu/test_training.py", "narrow-parameters", share=0.3),
    "devices": Part("tests/gpu/test_devices.py", "all", processes=4, gpus=2),
    "features": Part("tests/gpu/test_features.py", "narrow-parameters", share=0.3, processes=4, wide=False),
    "features-wide": Part("tests/gpu/test_features.py", "wide", share=0.3, processes=1, wide=True),
    "fuzz": Part("tests/gpu/test_fuzz.py", "narrow", 0.3, 5, wide=False, problems=8, functions=24),
    "fuzz-wide": Part("tests/gpu/test_fuzz.py", "wide", 0.4, 2, wide=True, problems=8, functions=24),
    "scores": Part(PROBLEMS, "narrow-parameters", 0.25, 6, SCORES, wide=False, problems=40, scores=26, needs=BACKWARD),
    "masks": Part(PROBLEMS, "narrow-parameters", 0.2, 5, MASKS, wide=False, problems=60, needs=BACKWARD),
    "problems": Part(
        PROBLEMS,
        "narrow",
        0.2,
        6,
        f"*-{SCORES}:{MASKS}:{MEMORY}",
        wide=False,
        problems=36,
        functions=12,
        needs=BACKWARD,
    ),
    "wide": Part(
        PROBLEMS, "wide", 0.2, 6, "Drawn/*", wide=True, problems=50, functions=12, scores=26, needs=WIDE_BACKWARD
    ),
    # With less than 227 KB no Hopper kernel runs. With 226 KB, portable kernels have the same tiles as with 227 KB.
    "portable": Part(PROBLEMS, "portable", 0.25, 6, problems=8, shared_kilobytes=226),
    "portable-163": Part(PROBLEMS, "portable", 0.15, 4, problems=4, shared_kilobytes=163),
    "portable-99": Part(PROBLEMS, "portable", 0.15, 4, problems=4, shared_kilobytes=99),
    "parameters": Part("gpu_parameters_test", "narrow-parameters", 0.4, 6, wide=False, needs=BACKWARD),
    "parameters-wide": Part("gpu_parameters_test", "wide", wide=True, needs=WIDE_BACKWARD),
    "out-of-memory": Part("tests/gpu/test_out_of_memory.py", "narrow"),
    "memory": Part(PROBLEMS, "wide", tests=MEMORY),
    "prepared-mask": Part("gpu_prepared_mask_test", "narrow-parameters", needs=FORWARD),
    "batches": Part("gpu_batches_test", "all", share=0.5, processes=4, needs=BACKWARD),
    "functions": Part("gpu_functions_test", "functions", 0.4, 3),
    # Each tool runs with the kernels that the planner chooses for the GPU, and with the portable kernels.
    **{
        f"{tool}{suffix}": Part(
            PROBLEMS,
            kernels,
            share=0.15,
            processes=3,
            tests="Drawn/*",
            wide=wide,
            problems=4,
            sanitizer=tool,
            shared_kilobytes=226 if kernels == "portable" else 0,
            needs=needs,
        )
        for tool in SANITIZERS
        for suffix, kernels, wide, needs in (
            ("", "narrow-parameters", False, BACKWARD),
            ("-wide", "wide", True, WIDE_BACKWARD),
            ("-portable", "portable", None, "portable: backward"),
        )
    },
}
