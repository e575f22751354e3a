"""Files of arrays, divided among ranks; each kind is left out where its library is not installed."""

import json
import threading
import time

import numpy as np
import pytest

from grpcxx.data import images, prefetch, shards

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


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_a_file_does_not_have_are_refused(tmp_path, kind):
    KINDS[kind](tmp_path / f"a.{kind}", columns(0, 4))
    with pytest.raises(KeyError, match="'?typo'?"):
        next(shards(tmp_path / f"a.{kind}", 0, 1, columns=["array" if kind == "npy" else "x", "typo"]))


OTHERS = {
    "one is missing": (lambda data: {"x": data["x"]}, r"b\.\w+ has no such column for 'y', and .*a\.\w+ has int64"),
    "one is new": (lambda data: {**data, "z": data["y"]}, r"b\.\w+ has int64 for 'z', and .*a\.\w+ has no such column"),
    "one has another type": (lambda data: {**data, "y": data["x"]}, r"b\.\w+ has float\d+ for 'y', .*has int64"),
}
# Numbers of CSV have no types of their own.
TEXTS = lambda data: {**data, "y": [f"t{value}" for value in data["y"]]}, r"b\.csv has object for 'y', .*has int64"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "npy"])
@pytest.mark.parametrize("batch_rows", [2, 3])
@pytest.mark.parametrize("other", OTHERS)
def test_files_of_other_columns_than_the_first_are_refused_by_name(tmp_path, kind, batch_rows, other):
    change, text = TEXTS if (kind, other) == ("csv", "one has another type") else OTHERS[other]
    write = KINDS[kind] if kind != "csv" else write_csv_of_any
    write(tmp_path / f"a.{kind}", columns(0, 4))
    write(tmp_path / f"b.{kind}", change(columns(4, 8)))
    with pytest.raises(ValueError, match=text):
        list(shards(tmp_path / f"*.{kind}", 0, 1, batch_rows=batch_rows))
    # What they share is one table.
    found = shards(tmp_path / f"*.{kind}", 0, 1, batch_rows=batch_rows, columns=["x"])
    assert sum(len(batch["x"]) for batch in found) == 8


def write_csv_of_any(path, data):
    pytest.importorskip("pyarrow")
    rows = [",".join(map(str, row)) for row in zip(*data.values())]
    path.write_text("\n".join([",".join(data), *rows]))


def test_files_without_rows_have_any_columns_and_texts_any_length(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 7)))
    np.save(tmp_path / "b.npy", np.array(["one", "two"]))
    np.save(tmp_path / "c.npy", np.array(["three"]))
    (batch,) = shards(tmp_path / "*.npy", 0, 1)
    assert batch["array"].tolist() == ["one", "two", "three"]
    np.save(tmp_path / "d.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"d\.npy has float64 of shape \[3\] for 'array', and .*b\.npy has str"):
        next(shards(tmp_path / "*.npy", 0, 1))


def test_columns_of_parquet_are_named_by_their_beginning_too(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"pair": [{"a": 1, "b": 2}] * 4, "y": [1] * 4})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    for names in (["pair"], ["pair.b"]):
        (batch,) = shards(tmp_path / "a.parquet", 0, 1, columns=names)
        assert list(batch) == ["pair"] and batch["pair"][0]["b"] == 2
    with pytest.raises(KeyError, match="no 'pair.c'; it has pair.a, pair.b, y"):
        next(shards(tmp_path / "a.parquet", 0, 1, columns=["y", "pair.c"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", range(3))
def test_fewer_rows_than_ranks_are_refused_on_each(tmp_path, kind, rank):
    KINDS[kind](tmp_path / f"a.{kind}", columns(0, 2))
    with pytest.raises(ValueError, match="2 rows .* 3 ranks"):
        list(shards(tmp_path / f"a.{kind}", rank, 3, batch_rows=3))


def safetensors_file(path, tensors):
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_safetensors_have_every_type_and_leave_out_what_nobody_knows(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = {
        "x": ("F32", [4], np.arange(4, dtype=np.float32).tobytes()),
        "brain": ("BF16", [4], bytes(range(8))),
        "eight": ("F8_E4M3", [4, 1], bytes(range(4))),
        "scale": ("F8_E8M0", [4], bytes(range(4))),
        "four": ("F4", [4, 2], bytes(range(4))),
        "newer": ("F9_NEW", [4], bytes(7)),
    }
    safetensors_file(tmp_path / "a.safetensors", tensors)
    with pytest.warns(UserWarning, match="'newer' is left out: its type 'F9_NEW' is none of"):
        (batch,) = shards(tmp_path / "a.safetensors", 0, 1)
    assert list(batch) == ["x", "brain", "eight", "scale", "four"]
    types = [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, np.uint8]
    assert [array.dtype for array in batch.values()] == types
    assert all(array.tobytes() == tensors[name][2] for name, array in batch.items())
    assert batch["four"].shape == (4, 1)


def test_damaged_safetensors_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    for tensors, said in [
        ({"x": ("F32", [4], bytes(15))}, "do not hold"),
        ({"x": ("F32", [-4], bytes(16))}, "do not hold"),
        ({"x": ("F32", "four", bytes(16))}, "damaged"),
        ({"x": ("F4", [3], bytes(2))}, "do not hold"),
    ]:
        safetensors_file(path, tensors)
        with pytest.raises(ValueError, match=f"a.safetensors: tensor 'x': .*{said}"):
            list(shards(path, 0, 1))
    for content, said in [(b"", "no JSON"), (b"\xff" * 20, "no safetensors file"), (b"\x01" + bytes(8), "no JSON")]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            list(shards(path, 0, 1))


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"no such file at all"])
def test_a_file_that_is_damaged_is_named(tmp_path, kind, content):
    KINDS[kind](tmp_path / f"a.{kind}", columns(0, 4))
    # CSV may be any text, but not one with rows of other lengths.
    (tmp_path / f"b.{kind}").write_bytes(content and (content if kind != "csv" else b"x,y\n1\n"))
    with pytest.raises(ValueError, match=rf"b\.{kind}"):
        list(shards(tmp_path / f"*.{kind}", 0, 1))


def test_a_name_with_brackets_is_no_pattern_where_the_file_is_there(tmp_path):
    np.save(tmp_path / "a[1].npy", np.arange(3))
    np.save(tmp_path / "a2.npy", np.arange(4))
    (batch,) = shards(tmp_path / "a[1].npy", 0, 1)
    assert len(batch["array"]) == 3
    (batch,) = shards(tmp_path / "a[2].npy", 0, 1)
    assert len(batch["array"]) == 4


def test_two_columns_of_one_name_are_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    table = arrow.table([[1], [2]], names=["a", "a"])
    with arrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for kind in ("csv", "arrow"):
        with pytest.raises(ValueError, match=rf"a\.{kind} has two columns of the name 'a'"):
            list(shards(tmp_path / f"a.{kind}", 0, 1))


LISTS = ["parquet", "arrow"]


def write_lists(path, kind, rows, depth=1):
    """A file with a column of lists of 2 numbers, or of 2 such lists, and None where a row has none."""
    arrow = pytest.importorskip("pyarrow")
    of = arrow.float32()
    for _ in range(depth):
        of = arrow.list_(of, 2)
    table = arrow.table({"pairs": arrow.array(rows, of), "row": list(range(len(rows)))})
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=4)
    else:
        with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("nulls", [{5}, {4, 6}])
def test_rows_without_a_list_are_refused_by_number(tmp_path, kind, nulls):
    path = tmp_path / f"data.{kind}"
    write_lists(path, kind, [None if row in nulls else [row, -row] for row in range(8)])
    batches = shards(path, 0, 1, batch_rows=4)
    np.testing.assert_array_equal(next(batches)["pairs"], [[row, -row] for row in range(4)])
    with pytest.raises(ValueError, match=f"row {min(nulls)} of column 'pairs' has a null"):
        next(batches)
    # Other columns are there.
    rows = [batch["row"].tolist() for batch in shards(path, 0, 1, batch_rows=4, columns=["row"])]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7]]


NULLS = {
    "int64": [2**53 + 1, 2**53 + 3, None, 2**53 + 5],
    "uint8": [1, 2, None, 3],
    "bool": [True, False, None, True],
    "list of 1 of int64": [[2**53 + 1], [2], [None], [3]],
    "dictionary of int64": [2**53 + 1, 2, None, 3],
}


def write_column(path, name, values):
    """A file whose only column has a type of this name."""
    arrow = pytest.importorskip("pyarrow")
    types = {
        "list of 1 of int64": lambda: arrow.list_(arrow.int64(), 1),
        "date": arrow.date32,
        "dictionary of int64": lambda: arrow.dictionary(arrow.int32(), arrow.int64()),
    }
    of = types.get(name, lambda: arrow.type_for_alias(name))()
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"id": arrow.array(values, of)}), path)


@pytest.mark.parametrize("kind", NULLS)
def test_nulls_for_which_a_type_has_no_value_are_refused_by_row(tmp_path, kind):
    write_column(tmp_path / "a.parquet", kind, NULLS[kind])
    (first,) = {tuple(np.ravel(batch["id"])) for batch in shards(tmp_path / "a.parquet", 0, 2, batch_rows=2)}
    assert first == tuple(np.ravel(NULLS[kind][:2]))
    with pytest.raises(ValueError, match=r"a\.parquet: row 2 of column 'id' has a null where each row has a value of"):
        list(shards(tmp_path / "a.parquet", 1, 2, batch_rows=2))


def test_files_of_csv_may_lack_decimals_that_others_have(tmp_path):
    for name, text in (("a", "x,y\n1,\n2,\n"), ("b", "x,y\n1.5,7.5\n"), ("c", "x,y\n3,8\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    batches = list(shards(tmp_path / "*.csv", 0, 1, batch_rows=1))
    assert [float(batch["x"][0]) for batch in batches] == [1, 2, 1.5, 3]
    assert {batch["x"].dtype for batch in batches} == {batch["y"].dtype for batch in batches} == {np.dtype(np.float64)}
    (tmp_path / "d.csv").write_text("x,y\ntext,8\n")
    with pytest.raises(ValueError, match=r"d\.csv has object for 'x', and .*a\.csv has float64"):
        next(shards(tmp_path / "*.csv", 0, 1))


def test_integers_of_csv_keep_their_digits_beside_an_empty_cell(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text(f"id,x\n{2**53 + 1},1\n,2\n")
    with pytest.raises(ValueError, match=r"a\.csv: row 1 of column 'id' has a null where .* a value of int64"):
        list(shards(tmp_path / "a.csv", 0, 1))
    (batch,) = shards(tmp_path / "a.csv", 0, 1, columns=["x"])
    assert batch["x"].tolist() == [1, 2]


def test_nulls_of_floating_point_texts_and_dates_have_a_value(tmp_path):
    for kind, values, expected in [
        ("float32", [0.5, None], ["0.5", "nan"]),
        ("string", ["a", None], ["a", "None"]),
        ("date", [0, None], ["1970-01-01", "NaT"]),
    ]:
        write_column(tmp_path / "a.parquet", kind, values)
        (batch,) = shards(tmp_path / "a.parquet", 0, 1)
        assert [*map(str, batch["id"])] == expected


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_lists_are_rows_of_matrices(tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    rows = [[[row, row + 1], [row + 2, row + 3]] for row in range(6)]
    write_lists(path, kind, rows, depth=2)
    found = np.concatenate([batch["pairs"] for batch in shards(path, 0, 1, batch_rows=3)])
    np.testing.assert_array_equal(found, rows)
    rows[4] = [[1, 2], None]
    write_lists(path, kind, rows, depth=2)
    with pytest.raises(ValueError, match="row 4 of column 'pairs' has a null"):
        list(shards(path, 0, 1, batch_rows=3))


# ---- Images


def write_images(folder, shapes):
    """Images of one color, which is their number, in two folders by turns."""
    image = pytest.importorskip("PIL.Image")
    for at, shape in enumerate(shapes):
        of_label = folder / ("odd" if at % 2 else "even")
        of_label.mkdir(exist_ok=True)
        image.fromarray(np.full((*shape, 3), at, np.uint8)).save(of_label / f"{at:02}.png")
    (folder / "even/notes.txt").write_text("no image")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("seed", [None, 7])
def test_ranks_divide_images_and_folders_are_labels(tmp_path, size, seed):
    write_images(tmp_path, [(4, 6)] * 14)
    found = [list(images(tmp_path, rank, size, batch_rows=2, seed=seed)) for rank in range(size)]
    assert len({len(batches) for batches in found}) == 1
    order = []
    for batch in (batch for step in zip(*found) for batch in step):
        assert batch["image"].shape == (len(batch["label"]), 4, 6, 3) and batch["image"].dtype == np.uint8
        assert (batch["image"] == batch["image"][:, :1, :1, :1]).all()
        numbers = batch["image"][:, 0, 0, 0]
        assert (numbers % 2 == batch["label"]).all(), "even comes before odd"
        order += numbers.tolist()
    named = [*range(0, 14, 2), *range(1, 14, 2)]
    assert len(order) == len(set(order)) == 14 // size * size
    assert (order == named[: len(order)]) == (seed is None)


def test_names_of_folders_are_no_patterns(tmp_path):
    for name in ("[ab]", "a", ".hidden"):
        (tmp_path / name).mkdir()
    pillow = pytest.importorskip("PIL.Image")
    for shade, name in enumerate(("[ab]", "a", ".hidden")):
        pillow.new("L", (2, 2), shade).save(tmp_path / name / "one.png")
    (batch,) = images(tmp_path, 0, 1, mode="L")
    assert batch["label"].tolist() == [0, 1] and batch["image"][:, 0, 0, 0].tolist() == [0, 1]


def test_images_of_several_sizes_are_resized_or_named(tmp_path):
    write_images(tmp_path, [(4, 6), (3, 3), (5, 5)])
    (batch,) = images(tmp_path / "even", 0, 1, shape=(8, 9), mode="L")
    assert batch["image"].shape == (2, 8, 9, 1) and list(batch) == ["image"], "a folder of images alone has no labels"
    assert (batch["image"][1] == 2).all()
    with pytest.raises(ValueError, match=r"02\.png has height and width \(5, 5\), and .*00\.png has \(4, 6\)"):
        list(images(tmp_path / "even", 0, 1))


@pytest.mark.parametrize("dtype, mode", [(np.uint16, "I;16"), (np.int32, "I"), (np.float32, "F")])
def test_images_of_more_than_8_bits_keep_their_values_or_are_refused(tmp_path, dtype, mode):
    pillow = pytest.importorskip("PIL.Image")
    values = np.array([[300, 40000]], dtype)
    pillow.fromarray(values).save(tmp_path / "deep.tif")
    modes = ["L", "RGB", "I;16", "I", "F"]
    enough = modes.index(mode)
    for narrow in modes[:enough]:
        with pytest.raises(ValueError, match=f"deep.tif .* more bits than '{narrow}' holds; say mode='{mode}'"):
            list(images(tmp_path, 0, 1, mode=narrow))
    for wide in modes[enough:]:
        (batch,) = images(tmp_path, 0, 1, mode=wide)
        assert (batch["image"][0, :, :, 0] == values).all()


def test_what_is_no_image_is_named(tmp_path):
    pytest.importorskip("PIL.Image")
    with pytest.raises(FileNotFoundError, match="holds no images; their names end with"):
        images(tmp_path, 0, 1)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG and no more")
    with pytest.raises(ValueError, match=r"broken\.png cannot be read as an image"):
        list(images(tmp_path, 0, 1))


# ---- Prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "grpcxx-prefetch"]


def test_batches_are_read_ahead_by_one_thread_and_not_further_than_asked():
    read, taken = [], []

    def batches():
        for number in range(20):
            read.append(number)
            yield number

    for number in prefetch(batches(), ahead=3):
        # The one that is taken, and those ahead of it.
        wanted, limit = min(20, number + 1 + 3), time.monotonic() + 10
        while len(read) < wanted and time.monotonic() < limit:
            time.sleep(0.001)
        assert len(read) == wanted and len(threads()) <= 1
        taken.append(number)
    assert taken == list(range(20)) and not threads()


def test_what_reading_raises_comes_behind_the_batches_before_it():
    def batches():
        yield 1
        raise OSError("the disk is gone")

    found = prefetch(batches(), ahead=5)
    assert next(found) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)
    assert not threads()


def test_an_iteration_that_is_left_early_ends_the_thread_and_closes_files():
    closed = []

    def batches():
        try:
            while True:
                yield np.zeros(3)
        finally:
            closed.append(threading.current_thread().name)

    found = prefetch(batches())
    next(found)
    found.close()
    assert not threads() and closed == ["grpcxx-prefetch"]
    with pytest.raises(ValueError, match="ahead is 0"):
        prefetch([], ahead=0)
