"""The vocabulary of plans: what it takes, what it refuses, and that files give back what went in."""

from __future__ import annotations

import base64
import json

import pytest
from pydantic import ValidationError

from harness.model import DataError
from harness.plan import (
    NATIVE_ENTRY,
    Buffer,
    Call,
    Kernel,
    Language,
    Launch,
    Layout,
    Memset,
    Operation,
    Plan,
    PlanFile,
    Pointer,
    Scalar,
    ScalarType,
    Step,
    Struct,
    Table,
    TensorMap,
    Unsupported,
)
from harness.problem import Problem

PROBLEM = Problem(m=64, n=32, k=16)
CUDA = Kernel(language=Language.CUDA, source="kernels/k.cu", entry="k")
HOST = Kernel(language=Language.C, source="kernels/k.c", entry="k")


def launch(*arguments: object, **fields: object) -> Launch:
    return Launch.model_validate({"kernel": "k", "grid": (1, 1, 1), "block": (32, 1, 1), "arguments": arguments, **fields})


def plan(*steps: Step, **fields: object) -> Plan:
    return Plan.model_validate({"layout": "NN", "kernels": {"k": CUDA}, "steps": steps or (launch(),), **fields})


def tensor_map(**fields: object) -> TensorMap:
    """C of the problem as f16 [64, 32], which each test changes."""
    return TensorMap.model_validate({"buffer": "C", "dims": (32, 64), "strides_bytes": (64,), "box": (32, 8), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"language": "cubin"},
        {"language": "cuda", "generated_from": "kernels/gen.cu"},
        {"source": "/etc/passwd"},
        {"source": "../k.cu"},
        {"source": "kernels/../../k.cu"},
        {"source": "kernels//k.cu"},
        {"source": "kernels\\k.cu"},
        {"source": ""},
        {"source": "kernels/k\0.cu"},
        {"entry": "k<float>"},
        {"entry": ""},
        {"defines": {"A": "1\n#include </etc/passwd>"}},
        {"defines": {"A": "3`touch /tmp/here`"}},
        {"defines": {"A": "$(id)"}},
        {"defines": {"A": "1 -o /tmp/here"}},
        {"defines": {"A": '__has_include("/etc/shadow")'}},
        {"source": "kernels/$(id).cu"},
        {"source": "kernels/a b.cu"},
        {"source": "kernels/`id`.cu"},
        {"source": "kernels/a;id.cu"},
        {"defines": {"A B": "1"}},
        {"defines": {"A": 1}},
        {"max_registers": 15},
        {"max_registers": 256},
        {"shared_carveout_percent": 101},
        {"language": "opencl"},
        {"flags": "-O3"},
    ],
)
def test_a_bad_kernel_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Kernel.model_validate({"language": "cuda", "source": "kernels/k.cu", "entry": "k", **fields})


@pytest.mark.parametrize("language", list(Language))
def test_every_language_has_a_kernel_and_plain_strings_will_do(language: Language) -> None:
    source = {"generated_from": "kernels/k.cu"} if language is Language.CUBIN else {}
    entry = NATIVE_ENTRY if language is Language.NATIVE else "k"
    kernel = Kernel.model_validate({"language": language.value, "source": "kernels/k", "entry": entry, **source})
    assert kernel.language is language


@pytest.mark.parametrize(
    "fields",
    [
        {"block": (1024, 1, 1)},
        {"block": (4, 4, 64)},
        {"grid": ((1 << 31) - 1, 65535, 65535)},
        {"grid": (4, 6, 1), "cluster": (2, 3, 1)},
        {"grid": (16, 1, 1), "cluster": (16, 1, 1)},
        {"cooperative": True},
        {"dynamic_shared_bytes": 232448},
    ],
)
def test_a_launch_within_the_limits(fields: dict[str, object]) -> None:
    assert launch(**fields).kernel == "k"


@pytest.mark.parametrize(
    "fields",
    [
        {"block": (1025, 1, 1)},
        {"block": (32, 33, 1)},
        {"block": (1, 1, 65)},
        {"block": (0, 1, 1)},
        {"grid": (1 << 31, 1, 1)},
        {"grid": (1, 65536, 1)},
        {"grid": (1, 1, 65536)},
        {"grid": (1, 1)},
        {"grid": (1.0, 1, 1)},
        {"grid": (3, 1, 1), "cluster": (2, 1, 1)},
        {"grid": (32, 1, 1), "cluster": (32, 1, 1)},
        {"dynamic_shared_bytes": -1},
        {"kernel": "K 1"},
        {"stream": 1},
        {"access_policy_window": {}},
    ],
)
def test_a_launch_beyond_the_limits_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        launch(**fields)


@pytest.mark.parametrize("buffer", ["C", "workspace", Buffer.C, Buffer.WORKSPACE])
def test_a_memset_names_its_buffer_plainly_or_by_the_enumeration(buffer: str) -> None:
    memset = Memset.model_validate({"buffer": buffer, "size_bytes": 4})
    assert memset.buffer is Buffer(buffer)
    assert Memset.model_validate_json(memset.model_dump_json()) == memset


@pytest.mark.parametrize(
    "fields",
    [
        {"buffer": "A"},
        {"buffer": "B"},
        {"size_bytes": 0},
        {"size_bytes": 6},
        {"offset_bytes": 2},
        {"offset_bytes": -4},
        {"value": 1 << 32},
        {"value": -1},
    ],
)
def test_a_memset_of_inputs_or_of_odd_bytes_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Memset.model_validate({"buffer": "C", "size_bytes": 4, **fields})


def test_a_programmatic_launch_follows_a_launch_of_its_operation() -> None:
    follower = launch(programmatic=True)
    assert plan(launch(), follower, follower).steps[1] == follower
    for steps in ((follower,), (follower, launch()), (Memset(buffer=Buffer.C, size_bytes=4), follower)):
        with pytest.raises(ValidationError, match="must follow a launch"):
            plan(*steps)


@pytest.mark.parametrize(
    ("steps", "fields", "says"),
    [
        ((), {"steps": ()}, "at least 1"),
        ((launch(),) * 65, {}, "at most 64"),
        ((launch(),), {"layout": "NT"}, "layout"),
        ((launch(),), {"kernels": {}}, "but the plan holds"),
        ((launch(),), {"kernels": {"k": CUDA, "spare": CUDA}}, "but the plan holds"),
        ((Memset(buffer=Buffer.C, size_bytes=4),), {"kernels": {}}, "at least one kernel"),
        ((Call(kernel="k"),), {}, "no host kernel"),
        ((launch(),), {"kernels": {"k": HOST}}, "use a call"),
        ((launch(),), {"workspace_bytes": -1}, "workspace_bytes"),
        ((launch(),), {"workspace_bytes": (4 << 30) + 1}, "workspace_bytes"),
        ((launch(),), {"workspace_bytes": 16, "zeroed_bytes": 32}, "exceeds workspace_bytes"),
        ((launch(),), {"workspace_bytes": 2 << 20, "zeroed_bytes": (1 << 20) + 1}, "zeroed_bytes"),
        ((launch(),), {"stream_priority": 1}, "stream_priority"),
        ((launch(),), {"deterministic": 1}, "deterministic"),
    ],
)
def test_an_incoherent_plan_is_refused(steps: tuple[Step, ...], fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        plan(*steps, **fields)


@pytest.mark.parametrize(
    ("step", "fits"),
    [
        (launch(Pointer(buffer=Buffer.A, offset_bytes=PROBLEM.a_bytes - 1)), True),
        (launch(Pointer(buffer=Buffer.A, offset_bytes=PROBLEM.a_bytes)), False),
        (launch(Pointer(buffer=Buffer.B, offset_bytes=PROBLEM.b_bytes)), False),
        (launch(Pointer(buffer=Buffer.C, offset_bytes=PROBLEM.c_bytes)), False),
        (launch(Pointer(buffer=Buffer.WORKSPACE, offset_bytes=255)), True),
        (launch(Pointer(buffer=Buffer.WORKSPACE, offset_bytes=256)), False),
        (launch(Struct(fields=(Pointer(buffer=Buffer.C, offset_bytes=1 << 40),))), False),
        (launch(tensor_map()), True),
        (launch(tensor_map(dims=(32, 65))), False),
        (launch(tensor_map(dims=(33, 64))), False),
        (launch(tensor_map(offset_bytes=16)), False),
        (launch(tensor_map(buffer="A", dims=(16, 64), strides_bytes=(32,))), True),
        (launch(tensor_map(buffer="workspace", dims=(8, 16), strides_bytes=(16,), box=(8, 8))), True),
        (launch(tensor_map(buffer="workspace", dims=(8, 17), strides_bytes=(16,), box=(8, 8))), False),
        (Memset(buffer=Buffer.C, offset_bytes=4, size_bytes=PROBLEM.c_bytes - 4), True),
        (Memset(buffer=Buffer.C, offset_bytes=4, size_bytes=PROBLEM.c_bytes), False),
        (Memset(buffer=Buffer.WORKSPACE, size_bytes=256), True),
        (Memset(buffer=Buffer.WORKSPACE, size_bytes=260), False),
        (launch(*[Scalar(dtype=ScalarType.F64, value=0)] * 512), True),
        (launch(*[Scalar(dtype=ScalarType.F64, value=0)] * 513), False),
        (launch(*[tensor_map()] * 33), False),
    ],
)
def test_steps_stay_inside_the_buffers_and_parameters_inside_4_kib(step: Step, fits: bool) -> None:
    kernel = () if isinstance(step, Launch) else (launch(),)
    whole = plan(step, *kernel, workspace_bytes=256)
    if fits:
        assert whole.check_bounds(PROBLEM) is None
    else:
        with pytest.raises(ValueError, match=r"reaches byte|parameters of k take"):
            whole.check_bounds(PROBLEM)


def everything() -> Plan:
    """A plan that uses every word there is."""
    struct = Struct(fields=(Scalar(dtype=ScalarType.I64, value=-1), Pointer(buffer=Buffer.B, offset_bytes=2)))
    table = Table(data_base64=base64.b64encode(b"\0\1\2").decode())
    first = launch(
        Pointer(buffer=Buffer.A),
        struct,
        table,
        tensor_map(element_strides=(1, 1), swizzle="64B", l2_promotion="128B", fill="nan"),
        Scalar(dtype=ScalarType.F32, value=0.1),
        grid=(2, 2, 1),
        cluster=(2, 1, 1),
        dynamic_shared_bytes=1024,
        cooperative=True,
    )
    cubin = Kernel(
        language=Language.CUBIN, source="kernels/r.cubin", generated_from="kernels/r.cu", entry="r", max_registers=128
    )
    return Plan(
        layout=Layout.TN,
        kernels={"k": CUDA.model_copy(update={"defines": {"TILE": "128"}}), "r": cubin},
        steps=(
            Memset(buffer=Buffer.WORKSPACE, size_bytes=64, value=7),
            first,
            launch(kernel="r", programmatic=True),
        ),
        workspace_bytes=4096,
        zeroed_bytes=64,
        deterministic=False,
    )


def test_a_plan_survives_json_and_its_hash_is_of_its_content() -> None:
    whole = everything()
    again = Plan.model_validate_json(whole.model_dump_json())
    assert again == whole
    assert again.sha256() == whole.sha256()
    assert again.model_copy(update={"deterministic": True}).sha256() != whole.sha256()


def test_a_plan_file_holds_each_kernel_once_and_gives_the_plans_back() -> None:
    plans: dict[str, Plan | Unsupported] = {"64x32x16": everything(), "8x8x8": plan(kernels={"k": everything().kernels["k"]})}
    file = PlanFile.collect({**plans, "1x1x1": Unsupported(reason="too small")})
    again = PlanFile.parse(file.model_dump_json(), "plan.json")
    assert again == file
    assert sorted(again.kernels) == ["k", "r"]
    for shape, expected in plans.items():
        assert again.plan_for(Problem.parse(shape)) == expected
    assert again.plan_for(Problem.parse("1x1x1")) == Unsupported(reason="too small")
    absent = again.plan_for(Problem.parse("2x2x2"))
    assert isinstance(absent, Unsupported)
    assert absent.reason == "plan.json has no plan for 2x2x2"


def test_two_kernels_of_one_name_do_not_fit_in_one_file() -> None:
    other = plan(kernels={"k": CUDA.model_copy(update={"entry": "other"})})
    with pytest.raises(ValueError, match="two different kernels are called k"):
        PlanFile.collect({"1x1x1": plan(), "2x2x2": other})


OPERATION = Operation(layout=Layout.NN, steps=(launch(),)).model_dump(mode="json")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"kernels": {}, "plans": {"1x1x1": OPERATION}}, "does not hold"),
        ({"kernels": {}, "plans": {"1x1": OPERATION}}, "not a shape"),
        ({"kernels": {}, "plans": {"01x1x1": OPERATION}}, "not a shape"),
        ({"kernels": {"k": {"language": "cuda"}}, "plans": {}}, "kernels"),
        ({"plans": {}}, "kernels: Field required"),
        ({"kernels": {}, "plans": {}, "schema_version": 2}, "newer version"),
        ({"kernels": {}, "plans": {"1x1x1": {"reason": ""}}}, "plans"),
        ({"kernels": {"k": HOST.model_dump(mode="json")}, "plans": {"1x1x1": OPERATION}}, "use a call"),
    ],
)
def test_a_bad_plan_file_is_one_sentence(document: dict[str, object], says: str) -> None:
    with pytest.raises(DataError) as error:
        PlanFile.parse(json.dumps(document), "plan.json")
    assert says in str(error.value)
    assert str(error.value).startswith("plan.json ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "nul", "[" * 100_000, '{"kernels": ' * 10_000, '"\\ud800"', "1" * 10_000, b"\xff"]
)
def test_text_that_is_no_plan_file_is_one_sentence(text: str | bytes) -> None:
    with pytest.raises(DataError, match=r"^plan\.json "):
        PlanFile.parse(text, "plan.json")
