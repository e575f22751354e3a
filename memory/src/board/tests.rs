use super::*;

#[test]
fn others_read_what_the_owner_writes() {
    let mut board = Board::new(100).unwrap();
    let view = BoardView::open(board.descriptor().unwrap(), 100).unwrap();
    board.write(40, b"what lies there");
    board.set_word(BOARD_WORDS - 1, 7);
    assert_eq!(view.word_value(BOARD_WORDS - 1), 7);
    let mut seen = [0; 15];
    view.read(40, &mut seen);
    assert_eq!(&seen, b"what lies there");
    drop(board);
    view.read(40, &mut seen);
    assert_eq!(&seen, b"what lies there", "a view outlives its board");
}

#[test]
fn what_is_no_board_of_that_length_is_refused() {
    let board = Board::new(100).unwrap();
    let other = BoardView::open(board.descriptor().unwrap(), PAGE_BYTES + 1);
    assert_eq!(other.unwrap_err(), Errno::INVAL);
    let file = tempfile();
    assert!(BoardView::open(&file, 100).is_err());
}

#[test]
#[should_panic(expected = "1 bytes at 4096 of a board of 4096 bytes")]
fn bytes_beyond_the_end_are_a_fault() {
    Board::new(4096).unwrap().write(4096, &[1]);
}

/// A file of the length of a board, which its owner can cut.
fn tempfile() -> std::os::fd::OwnedFd {
    let file = rustix::fs::memfd_create("no-board", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, board_bytes(100) as u64).unwrap();
    file
}
