"""`@orchgpu.function`: the definition of a function beside its code. Standard library only.

`orchgpu.workflow` names several of them as the steps of one workflow.

    import orchgpu

    @orchgpu.function(gpu={"memory": "512MiB"}, input="queries/in", output="answers/hits")
    def search(work): ...

`orchgpu deploy search.py` deploys it like a definition file: each decorated function of the module
becomes one function whose handler it is. This module is in the function's package, where the
decorator does nothing. `python -m orchgpu.declaration FILE` prints the definition as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

F = TypeVar("F", bound=Callable[..., object])

#: A place in S3: `bucket/prefix`, or the keys of a storage path (`path`, `suffix`, …); or several.
Place = str | Mapping[str, object]
Places = Place | Sequence[Place]

#: The attribute of a decorated function: its entry of the definition, without the handler.
_ATTRIBUTE = "__orchgpu_function__"
#: The attribute of a decorated function that takes and returns values, read by the runner.
_VALUES = "__orchgpu_values__"
#: The attribute of a decorated function with what loads its second argument, read by the runner.
_LOAD = "__orchgpu_load__"
#: The attribute of a module: its workflows by name, as a definition has them.
_WORKFLOWS = "__orchgpu_workflows__"


def function(
    *,
    input: Places,  # noqa: A002 - the key's own name
    output: Places = (),
    gpu: Mapping[str, object] | Literal["none"] | None = None,
    job: Mapping[str, object] | Literal["none"] | None = None,
    name: str | None = None,
    variables: Mapping[str, object] | None = None,
    secrets: Mapping[str, str] | None = None,
    values: bool = False,
    data: Mapping[str, object] | None = None,
    schedule: object = None,
    execution: str | None = None,
    host: Mapping[str, object] | None = None,
    endpoint: bool | Mapping[str, object] | None = None,
    service: str | None = None,
    load: Callable[[], object] | None = None,
    **settings: object,
) -> Callable[[F], F]:
    """Declare the decorated function, which takes one `lambda_functions.work.Work`.

    With `values` it takes the value of its input and returns that of its one output instead, as
    `orchgpu.Executor` sends and receives them: JSON, bytes or a NumPy array, by the file's suffix.
    `load` is called once in each process and gives the second argument of every call, as a model.

    `input`, `output`: where its files come from and go to; `gpu`, `job`: the blocks of that name,
    or the word `none` (without `gpu` its jobs get no device); `name`: by default the function's,
    with hyphens; `variables`: of its environment; `secrets`: variables with references to their
    values, read when a run starts (`{"TOKEN": "ssm:/search/token"}`); `data`: data sets with their
    sources; `schedule`: times, as `"0 3 * * 1"`; `execution`, `host`: where it runs, in `"lambda"`,
    on the `"host"` of its device or `"auto"`, and the terms there (with `{"warm": True}` a process
    stays); `endpoint`: whether programs call it; `service`: the URL that runs it off AWS;
    `settings`: further keys of `lambda:`. Raises TypeError for `values` without `output`.
    """
    if values and not output:
        raise TypeError("values=True needs an output: it is where the returned value is stored")
    block: dict[str, object] = {"output": _list(output)} if output else {}
    jobs: object = job
    if job == "none" or (job is None and gpu in (None, "none")):
        block["input"] = _list(input)
    else:
        jobs = {"input": _list(input), **(job or {})}
    if variables:
        block["container"] = {"environment": {"Variables": dict(variables)}}
    blocks = {
        "gpu": dict(gpu) if isinstance(gpu, Mapping) else gpu,
        "job": jobs,
        "secrets": dict(secrets) if secrets else None,
        "data": dict(data) if data else None,
        "schedule": schedule,
        "execution": execution,
        "host": dict(host) if host is not None else None,
        "endpoint": dict(endpoint) if isinstance(endpoint, Mapping) else endpoint,
        "service": service,
    }

    def declare(decorated: F) -> F:
        own = getattr(decorated, "__qualname__", "")
        if not own.isidentifier():
            raise TypeError(
                f"@orchgpu.function is for functions of a module, not for {own or decorated!r}"
            )
        named = {"name": name or own.replace("_", "-").strip("-"), **block, **settings}
        entry = {"lambda": named, **{key: one for key, one in blocks.items() if one is not None}}
        setattr(decorated, _ATTRIBUTE, entry)
        setattr(decorated, _VALUES, values)
        setattr(decorated, _LOAD, load)
        return decorated

    return declare


def workflow(
    name: str,
    *,
    steps: Sequence[Callable[..., object] | str],
    deadline: str | float | None = None,
    **settings: object,
) -> None:
    """Declare that functions of the calling module are the steps of one workflow.

    `steps`: decorated functions, or names of functions or groups; `deadline`: a run that has not
    ended this long after its input was stored is ended (`"10m"`); `settings`: further keys of
    `workflows:`. The order of the steps follows from their places, and is checked by the deploy.
    """
    names = [step if isinstance(step, str) else name_of(step) for step in steps]
    for step, known in zip(steps, names, strict=True):
        if known is None:
            raise TypeError(f"{step!r} is not the name of a function, nor has @orchgpu.function")
    block = {"steps": names, **({} if deadline is None else {"deadline": deadline}), **settings}
    frame = inspect.currentframe()
    assert frame is not None, "CPython has frames"
    assert frame.f_back is not None, "it is called by a module"
    frame.f_back.f_globals.setdefault(_WORKFLOWS, {})[name] = block


def _list(places: Places) -> list[dict[str, object]]:
    several = [places] if isinstance(places, str | Mapping) else places
    return [{"path": one} if isinstance(one, str) else dict(one) for one in several]


def name_of(decorated: object) -> str | None:
    """The name under which a decorated function is deployed; None for any other object."""
    entry = getattr(decorated, _ATTRIBUTE, None)
    return None if entry is None else str(entry["lambda"]["name"])


def deployed_name(function: str | Callable[..., object]) -> str:
    """The name of a deployed function that is given by it or as the function itself.

    Raises TypeError for a function without the decorator: its code is nowhere but here.
    """
    name = function if isinstance(function, str) else name_of(function)
    if name is None:
        raise TypeError(f"{function!r} is not the name of a function, nor has it @orchgpu.function")
    return name


def definition_of(file: Path) -> dict[str, object]:
    """The definition of the decorated functions of a file, which is imported.

    Raises whatever the import raises.
    """
    stem = file.stem
    sys.path.insert(0, str(file.parent.absolute()))  # as where it runs
    spec = importlib.util.spec_from_file_location(stem, file)
    assert spec is not None, "a file with the suffix .py has a loader"
    assert spec.loader is not None
    module = sys.modules[stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entries = []
    for one in dict.fromkeys(one for one in vars(module).values() if callable(one)):
        entry = getattr(one, _ATTRIBUTE, None)
        if entry is not None and one.__module__ == stem:  # not one that it imports
            handler = f"{stem}.{one.__name__}"
            entries.append({**entry, "lambda": {**entry["lambda"], "handler": handler}})
    workflows = vars(module).get(_WORKFLOWS)
    return {"functions": {"aws": entries}, **({"workflows": workflows} if workflows else {})}


@contextlib.contextmanager
def _output_as_errors() -> Iterator[int]:
    """Standard output as a descriptor of its own; what else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as own:
        os.dup2(2, 1)
        yield own.fileno()


def _main(file: str) -> int:
    with _output_as_errors() as output:
        try:
            text = json.dumps(definition_of(Path(file)))
        except (Exception, SystemExit) as error:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != file:
                frames = frames.tb_next
            traceback.print_exception(type(error), error, frames)
            return 1
        os.write(output, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
