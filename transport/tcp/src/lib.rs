//! TCP links, over io_uring where it works and over epoll elsewhere.
