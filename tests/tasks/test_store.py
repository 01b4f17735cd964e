"""A run in a store: continued by another machine, whatever became of the first, and by one machine at a time.

A machine is a pair of folders here, for runs and for data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from fsspec.implementations.dirfs import DirFileSystem

from components.config import RunParams
from components.errors import UserError
from components.storage import content_hash, write_sealed
from tasks import store
from tasks.retain import retain
from tasks.run import find_run, lock
from tasks.stage import read_stages
from tasks.store import Lease, Store, file_system, held
from tasks.summary import finished_iterations
from tests.tasks.pipeline import fingerprints, new_run, train

FIRST = "iterations/0000"


@pytest.fixture(autouse=True)
def _forget_copies():
    yield
    store._readable.clear()


@pytest.fixture(scope="module")
def bucket():
    """A bucket on a server that speaks S3, on loopback."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name, value in {
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "hush-hush",
            "DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def s3(bucket, caplog):
    caplog.set_level("WARNING", "werkzeug")
    return f"{bucket}/{uuid4().hex}/runs"


@pytest.fixture
def local(tmp_path):
    return f"file://{tmp_path}/store"


@pytest.fixture(params=["local", "memory", "s3"])
def url(request):
    return f"memory://{uuid4().hex}" if request.param == "memory" else request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def machine_data(finished, tmp_path_factory):
    """A machine's data folder, with what the finished run's machine had made."""
    folder = tmp_path_factory.mktemp("machine") / "data"
    shutil.copytree(finished.params.run.data_dir, folder)
    return folder


def _stages(path: Path, number: int, *names: str, shard: str = "") -> None:
    """Writes what stages leave behind, and tells the store as they do; `update_policy` writes a folder."""
    folder = path / "iterations" / f"{number:04d}" / shard
    for name in names:
        output = folder / ("policy" if name == "update_policy" else f"{name}.parquet")
        for file in (output / "a.bin", output / "below" / "b.bin") if name == "update_policy" else (output,):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{name} {number} {file.name}")
        stages = read_stages(folder)
        seconds = 1.0 + sum(entry["seconds"] for entry in stages.values())
        entry = {"inputs": {}, "outputs": {output.name: content_hash(output)}, "seconds": seconds, "metrics": {}}
        write_sealed(folder / "manifest.json", stages | {name: entry})
        if holder := store.store_of(path):
            holder.notify(folder / "manifest.json")


def _folder(tmp_path: Path, machine: str) -> Path:
    """A run's folder on a machine; machine a has begun the run."""
    path = tmp_path / machine / "r"
    path.mkdir(parents=True)
    if machine == "a":
        write_sealed(path / "manifest.json", {"run_id": "r"})
    return path


def _uploads(monkeypatch) -> list[str]:
    """Names of the objects that are uploaded from now on, in their order."""
    put, write, names = DirFileSystem.put, store.write, []
    monkeypatch.setattr(DirFileSystem, "put", lambda self, here, there: (names.extend(there), put(self, here, there)))
    monkeypatch.setattr(store, "write", lambda fs, name, *rest: (names.append(name), write(fs, name, *rest)))
    return names


def test_another_machine_continues_bit_for_bit_when_the_first_is_gone(
    params, machine_data, finished, tmp_path, local, caplog
):
    run = new_run(params, machine_data, tmp_path / "a", run={"store": local})
    with lock(run, local):
        train(run, stop_after=15)
    done = {(k, name): entry["seconds"] for k in (0, 1) for name, entry in read_stages(run.iteration(k)).items()}
    shutil.rmtree(tmp_path / "a")
    other = new_run(params, tmp_path / "other-data", tmp_path / "b", run={"store": local})
    with lock(other, local):
        train(other)
    assert not (tmp_path / "other-data" / "warmup").exists()  # it came from the store
    after = {(k, name): entry["seconds"] for k in (0, 1) for name, entry in read_stages(other.iteration(k)).items()}
    assert len(done) == 15
    assert done.items() <= after.items()
    expected = fingerprints(finished)
    assert fingerprints(other).items() <= expected.items()  # what nobody asked for stays in the store
    everything = find_run(f"{local}/r", tmp_path / "c")
    for k in (0, 1):
        for entry in read_stages(everything.iteration(k)).values():
            assert all(store.has_hash(everything.iteration(k) / name, h) for name, h in entry["outputs"].items())
    assert fingerprints(everything) == expected
    assert other.metrics_path.read_bytes() == everything.metrics_path.read_bytes()
    assert not caplog.records


def test_outputs_go_before_their_manifest_and_nothing_goes_twice(tmp_path, url, monkeypatch):
    path, there, names = _folder(tmp_path, "a"), file_system(f"{url}/r"), _uploads(monkeypatch)
    with held(path, url):
        _stages(path, 0, "scored", "roots", "update_policy")
        _stages(path, 1, "scored")
    assert names.index(f"{FIRST}/scored.parquet") < names.index(f"{FIRST}/manifest.json")
    last = max(place for place, name in enumerate(names) if name == f"{FIRST}/manifest.json")
    assert names.index(f"{FIRST}/policy/below/b.bin") < last
    names.clear()
    there.rm([f"{FIRST}/manifest.json", f"{FIRST}/roots.parquet"])
    manifest = path / "iterations/0001/manifest.json"
    manifest.write_text("torn")  # the store has a better one
    with held(path, url):
        pass
    assert set(names) == {".lease", ".writer", f"{FIRST}/manifest.json", f"{FIRST}/roots.parquet"}
    assert there.exists(f"{FIRST}/roots.parquet")


def test_only_what_is_asked_for_is_brought_and_only_with_the_right_content(tmp_path, url, caplog):
    path, other, there = _folder(tmp_path, "a"), _folder(tmp_path, "b"), file_system(f"{url}/r")
    with held(path, url):
        _stages(path, 0, "scored", "roots", "generated", "update_policy")
    there.pipe_file(f"{FIRST}/roots.parquet", b"torn")
    first = other / FIRST
    with held(other, url):
        there.rm(f"{FIRST}/generated.parquet")
        assert [p.name for p in first.iterdir()] == ["manifest.json"]
        assert store.is_there(first / "policy")
        assert (first / "policy/below/b.bin").read_text() == "update_policy 0 b.bin"
        for name in ("roots", "generated"):
            assert not store.is_there(first / f"{name}.parquet")
            assert f"r/{FIRST}/{name}.parquet is missing or damaged" in caplog.text
        assert not store.is_there(first / "of_no_stage.parquet")
        assert {p.name for p in first.iterdir()} == {"manifest.json", "policy"}
        _stages(other, 0, "roots")  # made anew
    assert there.cat(f"{FIRST}/roots.parquet") == b"roots 0 roots.parquet"


def test_retention_drops_in_the_store_what_this_machine_and_another_made(params, tmp_path, url):
    for number, machine in enumerate("ab"):
        run = new_run(params, tmp_path / "data", tmp_path / machine, run={"store": url, "keep_policies": 1})
        with lock(run, url):
            _stages(run.path, number, "verified", shard="shards/01-of-02")
            _stages(run.path, number, "generated", "update_policy", "record")
            with run.metrics_path.open("a") as stream:
                stream.write(json.dumps({"iteration": number, "eval/accuracy": None}) + "\n")
            retain.fn(run.path, number)
    assert {name for name in file_system(f"{url}/r").find("") if name.startswith("iterations/")} == {
        "iterations/0000/manifest.json", "iterations/0000/record.parquet",
        "iterations/0001/manifest.json", "iterations/0001/record.parquet",
        "iterations/0001/policy/a.bin", "iterations/0001/policy/below/b.bin",
    }  # fmt: skip


def test_what_was_dropped_is_uploaded_again_when_it_is_made_anew(tmp_path, local):
    path = _folder(tmp_path, "a")
    with held(path, local):
        for _ in range(2):
            _stages(path, 0, "verified", shard="shards/01-of-02")
            store.store_of(path).drop(path / FIRST / "shards")
        _stages(path, 0, "verified", shard="shards/01-of-02")
    assert (tmp_path / f"store/r/{FIRST}/shards/01-of-02/verified.parquet").exists()


def test_a_store_that_is_away_delays_uploads_but_not_the_run(tmp_path, local, caplog):
    path, there, aside = _folder(tmp_path, "a"), tmp_path / "store", tmp_path / "aside"
    with held(path, local):
        _stages(path, 0, "scored")
        there.rename(aside)
        there.write_text("in the way")
        _stages(path, 0, "roots", "update_policy")
    assert "is away" in caplog.text
    assert "to push it, continue the run here" in caplog.text
    away = pytest.raises(UserError, match=r"run\.store: cannot reach file://.*/store/r .*--set run.store=null")
    with away, held(path, local):
        pass
    there.unlink()
    aside.rename(there)
    with held(path, local):
        pass
    assert (there / f"r/{FIRST}/policy/a.bin").exists()
    assert read_stages(there / "r" / FIRST) == read_stages(path / FIRST)


def test_the_store_wins_where_another_machine_went_on(tmp_path, url, monkeypatch):
    path, other = _folder(tmp_path, "a"), _folder(tmp_path, "b")
    with held(path, url):
        _stages(path, 0, "scored")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_make_changes", lambda self: None)
        with held(path, url):  # nothing of this is uploaded before the machine goes
            _stages(path, 0, "roots")
            _stages(path, 1, "record")
    with held(other, url):
        _stages(other, 0, "roots", "update_policy")
    with held(path, url):
        assert read_stages(path / FIRST) == read_stages(other / FIRST)
        assert read_stages(path / "iterations/0001") == {}
        assert store.is_there(path / FIRST / "policy")


def test_one_machine_writes_at_a_time(tmp_path, url):
    path, other, there = _folder(tmp_path, "a"), _folder(tmp_path, "b"), file_system(f"{url}/r")
    refused = pytest.raises(UserError, match=r"://.*/r is being written on .* \(process \d+, last sign 0 s ago\); end")
    with held(path, url):
        with refused, held(other, url):
            pass
        lease = there.cat(".lease")
    assert not there.exists(".lease")

    there.pipe_file(".lease", lease)  # its process was killed: the same folder goes on, another one has to wait
    with refused, held(other, url):
        pass
    with held(path, url):
        pass
    there.pipe_file(".lease", json.dumps(json.loads(lease) | {"time": time.time() - store.STALE_SECONDS - 1}).encode())
    with held(other, url):
        pass


def test_a_machine_that_lost_its_lease_stops(tmp_path, url):
    path, there = _folder(tmp_path, "a"), file_system(f"{url}/r")
    stop = pytest.raises(UserError, match=r"taken over by far-away \(process 7\); this process stops")
    with stop, held(path, url):
        owner = {"token": "another", "host": "far-away", "pid": 7, "time": time.time()}
        store.write(there, ".lease", json.dumps(owner).encode())
        store.store_of(path).notify(path / "manifest.json")
        store.store_of(path)._thread.submit(int).result(60)
        _stages(path, 0, "scored", "roots")
    assert not there.find("iterations")
    assert json.loads(there.cat(".lease"))["token"] == "another"


def test_a_lease_is_renewed_while_it_is_held(local, monkeypatch):
    monkeypatch.setattr(store, "RENEW_SECONDS", 0.02)
    fs = file_system(local)

    def renewed() -> float:
        return float(json.loads(fs.cat(".lease"))["time"])

    with Lease(local, fs):
        first, deadline = renewed(), time.monotonic() + 10
        while renewed() == first and time.monotonic() < deadline:
            time.sleep(0.02)
        assert renewed() > first
    assert not fs.exists(".lease")


def test_a_store_grants_one_lease(url):
    fs = file_system(url)
    store.write(fs, ".lease", b"first", "create")
    with pytest.raises(FileExistsError):
        store.write(fs, ".lease", b"second", "create")
    assert fs.cat(".lease") == b"first"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("runs", "is no URL"),
        ("s3://key:secret@host/bucket", "credentials"),
        ("s3://bucket/runs?secret=1", "credentials"),
    ],
)
def test_store_must_be_a_url_without_credentials(url, reason):
    with pytest.raises(ValueError, match=reason):
        RunParams(store=url)


def test_two_runs_of_one_name_are_kept_apart(params, tmp_path, local):
    new_run(params, tmp_path / "data", tmp_path / "a", run={"store": local, "seed": 1})
    mine = new_run(params, tmp_path / "data", tmp_path / "b")
    before = (mine.path / "params.yaml").read_bytes()
    with pytest.raises(UserError, match=r"/b/r and file://.*/store/r are two runs of one name"):
        find_run(f"{local}/r", tmp_path / "b")
    with pytest.raises(UserError, match="two runs of one name"):
        new_run(params, tmp_path / "data", tmp_path / "b", run={"store": local})
    assert (mine.path / "params.yaml").read_bytes() == before
    copy = find_run(f"{local}/r", tmp_path / "c")  # but what was brought to be read may be continued
    assert new_run(params, tmp_path / "data", tmp_path / "c", run={"store": local, "seed": 1}).path == copy.path


def test_what_cannot_be_opened_is_one_line(params, tmp_path, local, bucket):
    with pytest.raises(UserError, match=r"run\.store='nowhere://x'.*nowhere"):
        new_run(params, tmp_path / "data", tmp_path, run={"store": "nowhere://x"})
    with pytest.raises(UserError, match=r"run\.store: cannot reach s3://nowhere/r"):
        new_run(params, tmp_path / "data", tmp_path, run={"store": "s3://nowhere"})
    with pytest.raises(UserError, match=r"no run in file://"):
        find_run(f"{local}/r", tmp_path / "runs")


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.run import Run, lock
from tests.tasks.pipeline import train
run = Run(Path(sys.argv[1]))
with lock(run, sys.argv[2]):
    train(run, 9)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_run_killed_between_machines_on_s3(params, machine_data, finished, tmp_path, s3, caplog, monkeypatch):
    run, there = new_run(params, machine_data, tmp_path / "a", run={"store": s3}), file_system(f"{s3}/r")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(run.path), s3]
    killed = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert there.exists(".lease")  # nobody was left to give it back
    shutil.rmtree(tmp_path / "a")
    monkeypatch.setattr(store, "STALE_SECONDS", 0.0)
    other = new_run(params, tmp_path / "other-data", tmp_path / "b", run={"store": s3})
    with lock(other, s3):
        train(other)
    assert fingerprints(other).items() <= fingerprints(finished).items()
    assert not there.exists(".lease")
    read = find_run(f"{s3}/r", tmp_path / "c")
    assert finished_iterations(read) == 2
    assert (read.iteration(1) / "policy" / "model.safetensors").exists()
    assert "hush-hush" not in caplog.text + (other.path / "params.yaml").read_text()
