"""Files of arrays, divided among ranks; each kind is left out where its library is not installed."""

import numpy as np
import pytest

from grpcxx.data import shards

ROWS = 23


def columns(start, stop):
    rows = np.arange(start, stop)
    return {"x": rows.astype(np.float32) / 2, "y": rows}


def write_npy(path, data):
    np.save(path, np.stack([data["x"], data["y"]], axis=1))


def write_csv(path, data):
    pytest.importorskip("pyarrow")
    path.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in zip(data["x"], data["y"])))


def write_parquet(path, data):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table(data), path, row_group_size=4)


def write_arrow(path, data):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(data)
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_safetensors(path, data):
    pytest.importorskip("safetensors.numpy").save_file(data, path)


def write_h5(path, data):
    with pytest.importorskip("h5py").File(path, "w") as file:
        for name, array in data.items():
            file[name] = array


def write_nc(path, data):
    with pytest.importorskip("h5netcdf").File(path, "w") as file:
        file.dimensions = {"row": len(data["x"])}
        for name, array in data.items():
            file.create_variable(name, ("row",), data=array)


KINDS = {
    "npy": write_npy,
    "csv": write_csv,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "safetensors": write_safetensors,
    "h5": write_h5,
    "nc": write_nc,
}


def rows_of(batch):
    return batch["array"][:, 1] if "array" in batch else batch["y"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_divide_files_by_batches(tmp_path, kind, size):
    for at, (start, stop) in enumerate([(0, 9), (9, 10), (10, ROWS)]):
        KINDS[kind](tmp_path / f"part-{at}.{kind}", columns(start, stop))
    found = [list(shards(tmp_path / f"part-*.{kind}", rank, size, batch_rows=3)) for rank in range(size)]
    assert len({len(batches) for batches in found}) == 1, "all ranks make as many steps"
    # Step by step, the ranks take what one process with the batch of all would.
    order = [row for step in zip(*found) for batch in step for row in rows_of(batch)]
    assert order == list(range(ROWS // size * size))
    if kind != "npy":
        assert all((batch["x"] == batch["y"] / 2).all() for batches in found for batch in batches)


def test_columns_can_be_chosen_and_must_belong_together(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images/left"], file["images/right"], file["names"] = np.zeros((6, 2)), np.ones((6, 2)), np.zeros(3)
    with pytest.raises(ValueError, match="images/left has 6 rows, .* names has 3 rows; name columns"):
        next(shards(tmp_path / "a.h5", 0, 1))
    (batch,) = shards(tmp_path / "a.h5", 0, 1, columns=["images/right"])
    assert batch["images/right"].shape == (6, 2) and len(batch) == 1
    with pytest.raises(KeyError, match="no 'middle'; it has images/left"):
        next(shards(tmp_path / "a.h5", 0, 1, columns=["middle"]))


def test_lists_of_one_length_become_matrices(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = arrow.FixedSizeListArray.from_arrays(arrow.array(np.arange(12.0)), 3)
    parquet.write_table(arrow.table({"features": features}), tmp_path / "a.parquet")
    (batch,) = shards(tmp_path / "a.parquet", 1, 2)
    np.testing.assert_array_equal(batch["features"], np.arange(6.0, 12.0).reshape(2, 3))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt ends with '\.txt', and can be read with \.arrow, \.csv"):
        shards(tmp_path / "a.txt", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"no file is named .*\*\.npy"):
        shards(tmp_path / "*.npy", 0, 1)
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        shards(tmp_path / "a.npy", 2, 2)
