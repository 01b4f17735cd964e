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

from components.errors import UserError
from components.params.root import RunParams
from components.storage import content_hash, write_sealed
from tasks import store
from tasks.retain import retain
from tasks.run import Run, find_run, lock
from tasks.stage import read_stages
from tasks.store import Lease, Store, file_system, held
from tests.tasks.pipeline import fingerprints, new_run, train

FIRST = "iterations/0000"


@pytest.fixture(autouse=True)
def _forget_copies():
    yield
    store._readable.clear()


@pytest.fixture(scope="module")
def s3():
    """A bucket on a server that speaks S3, on loopback."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "hush-hush", "DEFAULT_REGION": "us-east-1"}
        for name, value in keys.items():
            patch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def local(tmp_path):
    return f"file://{tmp_path}/store"


@pytest.fixture(params=["local", "memory", "s3"])
def url(request):
    base = "memory:/" if request.param == "memory" else request.getfixturevalue(request.param)
    return f"{base}/{uuid4().hex}"


def _stages(path: Path, number: int, *names: str, shard: str = "", content: str = "") -> None:
    """Writes what stages leave behind, and tells the store as they do; `update_policy` writes a folder."""
    folder = path / "iterations" / f"{number:04d}" / shard
    for name in names:
        output = folder / ("policy" if name == "update_policy" else f"{name}.parquet")
        shutil.rmtree(output, ignore_errors=True)
        files = (output / f"{content}a.bin", output / ".hidden", output / "below/b.bin")
        for file in files if name == "update_policy" else (output,):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{name} {number} {file.name}")
        stages = read_stages(folder)
        seconds = 1.0 + sum(entry["seconds"] for entry in stages.values())
        entry = {"inputs": {}, "outputs": {output.name: content_hash(output)}, "seconds": seconds, "metrics": {}}
        write_sealed(folder / "manifest.json", stages | {name: entry})
        if holder := store.store_of(path):
            holder.notify(folder / "manifest.json")


def _machines(tmp_path: Path, url: str) -> tuple[Path, Path, DirFileSystem]:
    """The run's folder on a machine that has begun the run, on another one, and in the store."""
    paths = tmp_path / "a/r", tmp_path / "b/r"
    for path in paths:
        path.mkdir(parents=True)
    write_sealed(paths[0] / "manifest.json", {"run_id": "r"})
    return *paths, file_system(f"{url}/r")


def _open(path: Path, url: str) -> None:
    with held(path, url):
        pass


def test_outputs_go_before_their_manifest_and_nothing_goes_twice(tmp_path, url, monkeypatch):
    path, _, there = _machines(tmp_path, url)
    put, write, names = DirFileSystem.put, store.write, []
    monkeypatch.setattr(DirFileSystem, "put", lambda self, here, there: (names.extend(there), put(self, here, there)))
    monkeypatch.setattr(store, "write", lambda fs, name, *rest: (names.append(name), write(fs, name, *rest)))
    with held(path, url):
        _stages(path, 0, "scored", "update_policy")
        _stages(path, 1, "scored")
    assert names.index(f"{FIRST}/scored.parquet") < names.index(f"{FIRST}/manifest.json")
    last = max(place for place, name in enumerate(names) if name == f"{FIRST}/manifest.json")
    assert names.index(f"{FIRST}/policy/below/b.bin") < last
    names.clear()
    there.rm([f"{FIRST}/manifest.json", f"{FIRST}/scored.parquet"])
    _open(path, url)
    assert f"{FIRST}/scored.parquet" in names
    assert not any("0001" in name for name in names)
    assert there.exists(f"{FIRST}/scored.parquet")


def test_only_what_is_asked_for_is_brought_and_only_with_the_right_content(tmp_path, url, caplog):
    path, other, there = _machines(tmp_path, url)
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


def test_damage_here_does_not_reach_the_store_and_a_manifest_comes_back_from_it(tmp_path, local):
    path, _, there = _machines(tmp_path, local)
    _stages(path, 0, "scored", "roots")
    (path / FIRST / "roots.parquet").write_bytes(b"torn")
    _open(path, local)
    assert there.find(FIRST) == [f"{FIRST}/manifest.json", f"{FIRST}/scored.parquet"]
    whole = there.cat(f"{FIRST}/manifest.json")
    (path / FIRST / "manifest.json").write_bytes(whole[:-9])
    _open(path, local)
    assert (path / FIRST / "manifest.json").read_bytes() == there.cat(f"{FIRST}/manifest.json") == whole


def test_retention_drops_in_the_store_what_this_machine_and_another_made(params, tmp_path, url):
    for number, machine in enumerate("abc"):
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
        "iterations/0002/manifest.json", "iterations/0002/record.parquet",
        "iterations/0002/policy/a.bin", "iterations/0002/policy/below/b.bin",
    }  # fmt: skip


def test_what_is_made_anew_is_uploaded_in_place_of_what_was_there_or_was_dropped(tmp_path, url):
    path, other, there = _machines(tmp_path, url)
    with held(path, url):
        _stages(path, 0, "update_policy")
        _stages(path, 0, "update_policy", content="other")
        _stages(path, 0, "verified", shard="shards/01-of-02")
        store.store_of(path).drop(path / FIRST / "shards")
        _stages(path, 0, "verified", shard="shards/01-of-02")
    assert there.exists(f"{FIRST}/shards/01-of-02/verified.parquet")
    with held(other, url):
        assert store.is_there(other / FIRST / "policy")


def test_a_store_that_is_away_delays_uploads_but_not_the_run(tmp_path, local, caplog, monkeypatch):
    (path, *_), there, aside = _machines(tmp_path, local), tmp_path / "store", tmp_path / "aside"
    with held(path, local):
        with monkeypatch.context() as patch:
            patch.setattr(DirFileSystem, "put", None)
            _stages(path, 0, "scored")
            store.store_of(path)._worker.submit(int).result(60)
        assert "is away" in caplog.text
    assert (there / f"r/{FIRST}/scored.parquet").exists()
    with held(path, local):
        there.rename(aside)
        there.write_text("in the way")
        _stages(path, 0, "update_policy")
    assert f"to push them, continue {path}" in caplog.text
    with pytest.raises(UserError, match=r"run\.store: cannot reach file://.*/store/r .*--set run.store=null"):
        _open(path, local)
    there.unlink()
    aside.rename(there)
    _open(path, local)
    assert (there / f"r/{FIRST}/policy/a.bin").exists()
    assert read_stages(there / "r" / FIRST) == read_stages(path / FIRST)


def test_the_store_wins_where_another_machine_went_on(tmp_path, url, monkeypatch):
    path, other, _ = _machines(tmp_path, url)
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
    path, other, there = _machines(tmp_path, url)
    refused = pytest.raises(
        UserError, match=r"://.*/r is being written on .* \(process \d+, last sign \d+ s ago\); end"
    )
    with held(path, url):
        with refused:
            _open(other, url)
        with pytest.raises(FileExistsError):
            store.write(there, ".lease", b"in the same moment", "create")
        lease = there.cat(".lease")
    assert not there.exists(".lease")

    there.pipe_file(".lease", lease)  # its process was killed: its folder goes on, another one has to wait
    with refused:
        _open(other, url)
    _open(path, url)
    there.pipe_file(".lease", json.dumps(json.loads(lease) | {"time": time.time() - store.STALE_SECONDS - 1}).encode())
    _open(other, url)


def test_a_machine_that_lost_its_lease_stops(tmp_path, url):
    path, _, there = _machines(tmp_path, url)
    stop = pytest.raises(UserError, match=r"taken over by far-away \(process 7\); this process stops")
    with stop, held(path, url):
        owner = {"token": "another", "host": "far-away", "pid": 7, "time": time.time()}
        store.write(there, ".lease", json.dumps(owner).encode())
        store.store_of(path).notify(path / "manifest.json")
        store.store_of(path)._worker.submit(int).result(60)
        _stages(path, 0, "scored", "roots")
    assert not there.find("iterations")
    assert json.loads(there.cat(".lease"))["token"] == "another"


def test_a_lease_is_renewed_while_it_is_held(local, monkeypatch):
    monkeypatch.setattr(store, "RENEW_SECONDS", 0.02)
    fs = file_system(local)
    with Lease(local, fs):
        first, deadline = fs.cat(".lease"), time.monotonic() + 10
        while (last := fs.cat(".lease")) == first and time.monotonic() < deadline:
            time.sleep(0.02)
        assert json.loads(last)["time"] > json.loads(first)["time"]
    assert not fs.exists(".lease")


@pytest.mark.parametrize("url", ["runs", "s3://key:secret@host/bucket", "s3://bucket/runs?secret=1"])
def test_store_must_be_a_url_without_credentials(url):
    with pytest.raises(ValueError, match="is no URL" if url == "runs" else "credentials"):
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


def test_what_cannot_be_opened_is_one_line(params, tmp_path, local, s3):
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
from tasks.store import store_of
from tests.tasks.pipeline import train
run = Run(Path(sys.argv[1]))
with lock(run, sys.argv[2]):
    train(run, 13)
    store_of(run.path)._worker.submit(int).result()
    train(run, 4)  # of the second iteration
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _seconds(run: Run) -> dict[tuple[int, str], float]:
    return {(k, name): entry["seconds"] for k in (0, 1) for name, entry in read_stages(run.iteration(k)).items()}


def test_run_killed_is_continued_elsewhere_bit_for_bit(params, finished, tmp_path, s3, caplog, monkeypatch):
    data, root = shutil.copytree(finished.params.run.data_dir, tmp_path / "data"), str(Path(__file__).parents[2])
    run, there = new_run(params, data, tmp_path / "a", run={"store": s3}), file_system(f"{s3}/r")
    command = [sys.executable, "-c", KILLED, str(run.path), s3]
    code = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": root}, timeout=600).returncode
    assert code == -signal.SIGKILL
    assert there.exists(".lease")  # nobody was left to give it back
    shutil.rmtree(tmp_path / "a")
    monkeypatch.setattr(store, "STALE_SECONDS", 0.0)

    done = _seconds(find_run(f"{s3}/r", tmp_path / "c"))
    assert len(done) >= 13
    other = new_run(params, tmp_path / "other-data", tmp_path / "b", run={"store": s3})
    with lock(other, s3):
        train(other)
    assert not there.exists(".lease")
    assert not (tmp_path / "other-data" / "warmup").exists()  # it came from the store
    assert done.items() <= _seconds(other).items()
    assert fingerprints(other).items() <= fingerprints(finished).items()  # what nobody asked for stays in the store

    everything = find_run(f"{s3}/r", tmp_path / "c")
    for k in (0, 1):
        for entry in read_stages(everything.iteration(k)).values():
            assert all(store.has_hash(everything.iteration(k) / name, h) for name, h in entry["outputs"].items())
    assert fingerprints(everything) == fingerprints(finished)
    assert other.metrics_path.read_bytes() == everything.metrics_path.read_bytes()
    assert not [record for record in caplog.records if record.name == "trace"]
    assert "hush-hush" not in caplog.text + (other.path / "params.yaml").read_text()
