"""Clients that others' generators make of the API's description, against a real console."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.integration.web.conftest import Site
from tests.integration.web.programs import end, program, receive

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.soak,
    pytest.mark.timeout(600),
]

PYTHON_GENERATOR = "openapi-python-client==0.29.1"
NPM_PACKAGES = ("@hey-api/openapi-ts@0.95.0", "typescript@5.9.3", "@types/node@20.19.0")

PYTHON_PROGRAM = """
import json, sys
from io import BytesIO
from made import AuthenticatedClient
from made.api.jobs import cancel_job, get_job, get_output, list_jobs, submit_job
from made.models import Error, InputReference, SubmitJobFilesBody
from made.types import File

url, key, over = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key)
sent = [
    submit_job.sync("f", client=client, body=File(BytesIO(b"same")), idempotency_key="generated")
    for _ in range(2)
]
reference = submit_job.sync("f", client=client, body=InputReference(input_=sent[0].input_))
form = SubmitJobFilesBody(file=File(BytesIO(b"form"), file_name="form.txt"))
of_form = submit_job.sync("f", client=client, body=form)
refused = submit_job.sync("nothing", client=client, body=File(BytesIO(b"")))
assert isinstance(refused, Error), refused
job = get_job.sync(over, client=client)
(output,) = job.outputs
print(json.dumps({
    "ids": [one.id for one in sent],
    "others": len({reference.id, of_form.id, sent[0].id}),
    "code": refused.error.code.value,
    "listed": over in [one.id for one in list_jobs.sync(client=client).jobs],
    "state": job.state,
    "content": get_output.sync(over, output.name, client=client).payload.read().decode(),
    "cancelled": cancel_job.sync(sent[0].id, client=client).state,
}))
"""
TYPESCRIPT_PROGRAM = """
import { createClient } from "./made/client";
import { cancelJob, getJob, getOutput, listJobs, submitJob } from "./made";

async function main(url: string, key: string, over: string): Promise<void> {
  const client = createClient({ baseUrl: url, auth: () => key });
  const send = () => submitJob({
    client, path: { function: "f" }, body: new Blob(["same"]) as never, bodySerializer: null,
    headers: { "Idempotency-Key": "typed", "Content-Type": "application/octet-stream" },
  });
  const sent = [await send(), await send()].map((one) => one.data!);
  const reference = await submitJob({
    client, path: { function: "f" }, body: { input: sent[0].input! },
  });
  const refused = await submitJob({
    client, path: { function: "nothing" }, body: { input: "s3://a/b" },
  });
  const job = (await getJob({ client, path: { job: over } })).data!;
  const output = await getOutput({
    client, path: { job: over, output: job.outputs![0].name }, parseAs: "text",
  });
  const cancelled = await cancelJob({ client, path: { job: sent[0].id } });
  const listed = (await listJobs({ client })).data!.jobs;
  console.log(JSON.stringify({
    ids: sent.map((one) => one.id),
    others: new Set([reference.data!.id, sent[0].id, ""]).size,
    code: refused.error!.error.code,
    listed: listed.some((one) => one.id === over),
    state: job.state,
    content: output.data,
    cancelled: cancelled.data!.state,
  }));
}

const [url, key, over] = process.argv.slice(2);
main(url, key, over);
"""


async def run(folder: Path, *command: str | Path, registry: bool = False) -> str:
    """Output of a command; one that asks a registry skips the test when that fails."""
    outside = {name: text for name, text in os.environ.items() if name != "SSL_CERT_FILE"}
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**outside, "npm_config_cache": str(folder / "npm"), "CI": "1"},
    )
    out, err = await child.communicate()
    if registry and child.returncode != 0:
        pytest.skip(f"{command[0]} gets no packages here: {err.decode()[-200:]}")
    assert child.returncode == 0, (command, out.decode()[-3000:], err.decode()[-3000:])
    return out.decode()


async def described(site: Site, folder: Path) -> str:
    """The description in a file, and a job that is over; returns its id."""
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        (folder / "openapi.json").write_text(json.dumps(await lab.get("/v1/openapi.json")))
        job = await lab.submit()
        await receive(site, peer, job)
        await end(site, peer, job["id"], {"a.txt": b"the output"})
        await lab.get(job["links"]["job"] + "?wait=20")
        return str(job["id"])


def check(printed: str, others: int) -> None:
    found: dict[str, Any] = json.loads(printed)
    first, second = found.pop("ids")
    assert first == second
    assert found == {
        "others": others,
        "code": "not_found",
        "listed": True,
        "state": "SUCCEEDED",
        "content": "the output",
        "cancelled": "CANCELLED",
    }


async def test_a_generated_python_client(site: Site, tmp_path: Path) -> None:
    over = await described(site, tmp_path)
    await asyncio.to_thread(venv.create, tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    await run(tmp_path, python, "-m", "pip", "install", "-q", PYTHON_GENERATOR, registry=True)
    options = ("--path", "openapi.json", "--output-path", "made", "--meta", "none")
    await run(tmp_path, python.with_name("openapi-python-client"), "generate", *options)
    (tmp_path / "program.py").write_text(PYTHON_PROGRAM)
    check(await run(tmp_path, python, "program.py", site.url, site.keys["lab"], over), 3)


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
async def test_a_generated_typescript_client(site: Site, tmp_path: Path) -> None:
    over = await described(site, tmp_path)
    (tmp_path / "package.json").write_text("{}")
    install = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    await run(tmp_path, *install, *NPM_PACKAGES, registry=True)
    tools = tmp_path / "node_modules" / ".bin"
    await run(tmp_path, tools / "openapi-ts", "-i", "openapi.json", "-o", "made")
    (tmp_path / "program.ts").write_text(TYPESCRIPT_PROGRAM)
    options = "--strict --skipLibCheck --target es2022 --lib es2022,dom,dom.iterable --module"
    strict = f"{options} commonjs --moduleResolution node --outDir built".split()
    await run(tmp_path, tools / "tsc", *strict, "program.ts")
    printed = await run(tmp_path, "node", "built/program.js", site.url, site.keys["lab"], over)
    check(printed, 3)
