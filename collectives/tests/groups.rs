//! Groups over real engines: each rank is an engine of its own, connected by TCP or shared memory.

#[path = "../../runtime/tests/support/authority.rs"]
mod authority;
#[path = "groups/boards.rs"]
mod boards;
#[path = "groups/large.rs"]
mod large;
#[path = "groups/leaving.rs"]
mod leaving;
#[path = "groups/log.rs"]
mod log;
#[path = "../../runtime/tests/support/ports.rs"]
mod ports;
#[path = "groups/strangers.rs"]
mod strangers;
#[path = "groups/types.rs"]
mod types;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use authority::Authority;
use grpcxx_collectives::{Group, GroupBuilder, JoiningGroup, ReduceOp};
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Code, Shape, Status, Tensor};
use grpcxx_runtime::Engine;

/// Starts an engine for each rank.
fn engines(size: u32, has_shared_memory: bool) -> Vec<Engine> {
    let engine = |index| {
        let builder = Engine::builder()
            .task("worker", index)
            .listen("127.0.0.1:0");
        let builder = builder.shared_memory(has_shared_memory).rdma(false);
        builder.arena_bytes(256 << 20).start().unwrap()
    };
    (0..size).map(engine).collect()
}

fn address(engine: &Engine) -> String {
    engine.local_addr().unwrap().to_string()
}

/// Runs the code of all ranks, each on a thread of its own.
fn together<T: Send>(
    engines: &[Engine],
    change: impl Fn(GroupBuilder) -> GroupBuilder + Sync,
    code: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let (size, first) = (engines.len() as u32, address(&engines[0]));
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, engine) in engines.iter().enumerate() {
            let builder = change(Group::builder(rank as u32, size, first.clone()));
            let code = &code;
            let joining = builder.begin(engine).unwrap();
            threads.push(scope.spawn(move || code(joining.wait().unwrap())));
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn values(rank: u32, len: usize) -> Vec<f32> {
    (0..len)
        .map(|at| ((rank as usize * 31 + at) % 1009) as f32)
        .collect()
}

fn sums(size: u32, len: usize) -> Vec<f32> {
    (0..len)
        .map(|at| {
            (0..size)
                .map(|rank| ((rank as usize * 31 + at) % 1009) as f32)
                .sum()
        })
        .collect()
}

#[test]
fn ranks_sum_arrays_of_any_length_over_each_medium() {
    for has_shared_memory in [true, false] {
        for size in [1, 2, 3] {
            let engines = engines(size, has_shared_memory);
            together(
                &engines,
                |builder| builder,
                |group| {
                    for len in [0, 1, 1000, 30_000, 700_001] {
                        let mine = Tensor::vector(values(group.rank(), len));
                        let found = group.all_reduce(mine, ReduceOp::Sum).wait().unwrap();
                        assert_eq!(
                            found.elements::<f32>().unwrap()[..],
                            sums(size, len),
                            "{len}"
                        );
                    }
                    group.leave().unwrap();
                },
            );
        }
    }
}

#[test]
fn all_operators_give_each_rank_its_part() {
    let size = 4;
    let engines = engines(size, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            let rank = group.rank();
            for len in [4, 400_000] {
                let mine = || Tensor::vector(values(rank, len));
                let share = len / size as usize;
                let part = |of: &[f32], rank: u32| of[rank as usize * share..][..share].to_vec();
                let all: Vec<f32> = (0..size).flat_map(|rank| values(rank, len)).collect();
                let floats = |tensor: &Tensor| tensor.elements::<f32>().unwrap().into_owned();

                let found = group.reduce_scatter(mine(), ReduceOp::Sum).wait().unwrap();
                assert_eq!(floats(&found), part(&sums(size, len), rank));
                let found = group.all_gather(mine()).wait().unwrap();
                assert_eq!(floats(&found), all);
                let found = group.broadcast(mine(), 2).wait().unwrap();
                assert_eq!(floats(&found), values(2, len));
                let found = group.reduce(mine(), ReduceOp::Sum, 1).wait().unwrap();
                assert_eq!(
                    found.map(|found| floats(&found)),
                    (rank == 1).then(|| sums(size, len))
                );
                let found = group.gather(mine(), 3).wait().unwrap();
                assert_eq!(
                    found.map(|found| floats(&found)),
                    (rank == 3).then(|| all.clone())
                );
                let scattered = match rank {
                    0 => mine(),
                    _ => Tensor::vector(vec![0f32; share]),
                };
                let found = group.scatter(scattered, 0).wait().unwrap();
                assert_eq!(floats(&found), part(&values(0, len), rank));
                let found = group.all_to_all(mine()).wait().unwrap();
                let wanted: Vec<f32> = (0..size)
                    .flat_map(|from| part(&values(from, len), rank))
                    .collect();
                assert_eq!(floats(&found), wanted);
                group.barrier().wait().unwrap();
            }
            group.leave().unwrap();
        },
    );
}

#[test]
fn operations_go_on_beside_each_other_and_results_land_where_they_should() {
    let engines = engines(2, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            let (ahead, beside) = (group.with_tag(1), group.with_tag(2));
            let len = 300_000;
            let mine = || Tensor::vector(values(group.rank(), len));
            let output = BufferMut::zeroed(4 * len);
            let place = output.as_ptr();
            let first = ahead.all_reduce_into(mine(), ReduceOp::Sum, output);
            let many: Vec<_> = (0..50)
                .map(|_| beside.all_reduce(mine(), ReduceOp::Max))
                .collect();
            let second = ahead.broadcast(mine(), 1);
            assert_eq!(
                second.wait().unwrap().as_slice::<f32>().unwrap(),
                values(1, len)
            );
            for operation in many {
                let found = operation.wait().unwrap();
                assert_eq!(found.as_slice::<f32>().unwrap().len(), len);
            }
            let found = first.wait().unwrap();
            assert_eq!(found.data.as_ptr(), place);
            assert_eq!(found.as_slice::<f32>().unwrap(), sums(2, len));
            group.leave().unwrap();
        },
    );
}

#[test]
fn small_tensors_travel_together_and_come_back_apart() {
    let engines = engines(2, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            let rank = group.rank();
            let tensors = vec![
                Tensor::scalar(rank as f32),
                Tensor::vector(vec![1i64, i64::from(rank)]),
                Tensor::from_vec(Shape::new(&[2, 2]).unwrap(), vec![1.0f32; 4]).unwrap(),
            ];
            let found = group
                .all_reduce_many(tensors, ReduceOp::Sum)
                .unwrap()
                .wait()
                .unwrap();
            assert_eq!(found[0].value::<f32>().unwrap(), 1.0);
            assert_eq!(found[1].elements::<i64>().unwrap()[..], [2, 1]);
            assert_eq!(found[2].shape.dims(), [2, 2]);
            assert_eq!(found[2].elements::<f32>().unwrap()[..], [2.0; 4]);
            assert_eq!(group.failure(), None);
            group.leave().unwrap();
        },
    );
}

#[test]
fn operations_that_differ_are_named_on_all_ranks() {
    let engines = engines(3, true);
    let errors = together(
        &engines,
        |builder| builder,
        |group| {
            let rank = group.rank();
            let mine = Tensor::vector(vec![1f32; if rank == 2 { 5 } else { 4 }]);
            let first = group.all_reduce(mine, ReduceOp::Sum).wait().unwrap_err();
            let next = group.barrier().wait().unwrap_err();
            assert_eq!(first, next);
            assert_eq!(group.failure(), Some(next));
            first
        },
    );
    for error in errors {
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
        let wanted = "but rank 2 called all_reduce(float32 [5], sum) as operation 0";
        assert!(error.message.contains(wanted), "{error}");
    }
}

#[test]
fn a_rank_that_stops_at_its_failure_has_told_the_others_why() {
    for _ in 0..40 {
        let engines = engines(2, true);
        let first = address(&engines[0]);
        let ranks = (0..).zip(engines).map(|(rank, engine)| {
            let joining = Group::builder(rank, 2, first.clone()).begin(&engine);
            let joining = joining.unwrap();
            thread::spawn(move || {
                let group = joining.wait().unwrap();
                let mine = Tensor::vector(vec![1f32; 4 + rank as usize]);
                let error = group.all_reduce(mine, ReduceOp::Sum).wait().unwrap_err();
                group.leave().unwrap();
                drop(engine);
                error
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let error = rank.join().unwrap();
            assert_eq!(error.code, Code::InvalidArgument, "{error}");
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_the_others_and_they_form_a_group_without_it() {
    let mut engines = engines(3, true);
    let groups = together(&engines, |builder| builder, |group| group);
    let operations: Vec<_> = groups[..2]
        .iter()
        .map(|group| group.all_reduce(Tensor::scalar(1f32), ReduceOp::Sum))
        .collect();
    let began = Instant::now();
    drop(engines.pop());
    for operation in operations {
        let error = operation.wait().unwrap_err();
        assert!(error.message.contains("rank 2 (127.0.0.1:"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    together(
        &engines,
        |builder| builder.generation(1),
        |group| {
            let found = group
                .all_reduce(Tensor::scalar(1i32), ReduceOp::Sum)
                .wait()
                .unwrap();
            assert_eq!(found.value::<i32>().unwrap(), 2);
        },
    );
}

#[test]
fn a_rank_that_does_not_call_is_named_in_time() {
    let engines = engines(3, true);
    let patience = Duration::from_secs(2);
    let have_ended = Barrier::new(3);
    let errors = together(
        &engines,
        |builder| builder.timeout(patience),
        |group| {
            let began = Instant::now();
            let error = (group.rank() != 1).then(|| group.barrier().wait().unwrap_err());
            let taken = began.elapsed();
            have_ended.wait();
            assert!(taken < 2 * patience, "{taken:?}");
            error
        },
    );
    for error in errors.into_iter().flatten() {
        assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
        let wanted = "rank 1 (127.0.0.1:";
        assert!(error.message.starts_with(wanted), "{error}");
        let wanted = "did not take part in barrier 0 within 2s";
        assert!(error.message.contains(wanted), "{error}");
    }
}

#[test]
fn a_rank_that_waits_for_another_one_is_not_named() {
    for has_shared_memory in [true, false] {
        let engines = engines(3, has_shared_memory);
        let patience = Duration::from_secs(3);
        let errors = together(
            &engines,
            |builder| builder.timeout(patience),
            |group| {
                // Rank 0 waits for both others, rank 1 under another tag for rank 2.
                let waits = match group.rank() {
                    0 => group.barrier(),
                    1 => group.with_tag(1).barrier(),
                    _ => {
                        while group.failure().is_none() {
                            thread::sleep(Duration::from_millis(5));
                        }
                        return group.failure().unwrap();
                    }
                };
                waits.wait().unwrap_err()
            },
        );
        for error in errors {
            assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
            let named = error.message.matches(" (127.0.0.1:").count();
            let is_alone = error.message.starts_with("rank 2 (127.0.0.1:") && named == 1;
            assert!(is_alone, "{error}");
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_later_operations_alone() {
    let engines = engines(2, true);
    let errors = together(
        &engines,
        |builder| builder,
        |group| {
            group.barrier().wait().unwrap();
            if group.rank() == 1 {
                group.leave().unwrap();
                return None;
            }
            thread::sleep(Duration::from_millis(200));
            Some(group.barrier().wait().unwrap_err())
        },
    );
    let error = errors.into_iter().flatten().next().unwrap();
    assert!(error.message.ends_with("has left the group"), "{error}");
}

#[test]
fn ranks_may_wait_for_longer_than_a_clock_goes() {
    let engines = engines(2, false);
    // The second group needs shards that have seen the first one fail.
    for generation in 0..2 {
        let endless = |builder: GroupBuilder| {
            let builder = builder.generation(generation).timeout(Duration::MAX);
            builder.join_timeout(Duration::MAX)
        };
        let errors = together(&engines, endless, |group| {
            group.barrier().wait().unwrap();
            if group.rank() == 1 {
                group.leave().unwrap();
                return None;
            }
            Some(group.barrier().wait().unwrap_err())
        });
        let error = errors.into_iter().flatten().next().unwrap();
        assert!(error.message.ends_with("has left the group"), "{error}");
    }
}

#[test]
fn groups_that_do_not_get_full_say_who_is_missing() {
    let engines = engines(3, true);
    let first = address(&engines[0]);
    let begin = |rank: u32, engine: &Engine| {
        let builder = Group::builder(rank, 4, first.clone());
        let builder = builder.join_timeout(Duration::from_secs(4));
        builder.begin(engine).unwrap()
    };
    let both = [begin(0, &engines[0]), begin(2, &engines[2])];
    let threads = both.map(|joining| thread::spawn(move || joining.wait().unwrap_err()));
    for thread in threads {
        let error = thread.join().unwrap();
        assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
        let wanted = "2 of 4 ranks are missing (1, 3)";
        assert!(error.message.contains(wanted), "{error}");
    }
}

#[test]
fn a_rank_whose_time_is_over_before_that_of_rank_0_is_not_one_that_never_came() {
    let engines = engines(2, true);
    let first = address(&engines[0]);
    let begin = |rank: u32, limit: Duration| {
        let builder = Group::builder(rank, 4, first.clone()).join_timeout(limit);
        builder.begin(&engines[rank as usize]).unwrap()
    };
    let waits = begin(0, Duration::from_secs(4));
    let waits = thread::spawn(move || waits.wait().unwrap_err());
    begin(1, Duration::from_secs(1)).wait().unwrap_err();
    let error = waits.join().unwrap();
    let wanted = "2 of 4 ranks are missing (2, 3), and 1 came and left (1)";
    assert!(error.message.contains(wanted), "{error}");
}

#[test]
fn a_rank_whose_time_is_over_before_that_of_rank_0_is_told_who_is_missing() {
    let engines = engines(2, true);
    let first = address(&engines[0]);
    let begin = |rank: u32, limit: Duration| {
        let builder = Group::builder(rank, 4, first.clone()).join_timeout(limit);
        builder.begin(&engines[rank as usize]).unwrap()
    };
    let limit = Duration::from_secs(4);
    let waits = begin(0, 2 * limit);
    let waits = thread::spawn(move || waits.wait().unwrap_err());
    let began = Instant::now();
    let error = begin(1, limit).wait().unwrap_err();
    assert!(began.elapsed() < 2 * limit, "{:?}", began.elapsed());
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    let wanted = "within 4s: 2 of 4 ranks are missing (2, 3)";
    assert!(error.message.contains(wanted), "{error}");
    waits.join().unwrap();
}

#[test]
fn a_rank_that_comes_twice_or_expects_another_size_is_refused() {
    let engines = engines(4, true);
    let first = address(&engines[0]);
    let begin = |rank: u32, size: u32, engine: &Engine| {
        let builder = Group::builder(rank, size, first.clone());
        let builder = builder.join_timeout(Duration::from_secs(20));
        builder.begin(engine).unwrap()
    };
    let spawn = |joining: JoiningGroup| thread::spawn(move || joining.wait().map(|_| ()));
    let here = spawn(begin(0, 3, &engines[0]));
    let other = begin(1, 2, &engines[3]).wait().unwrap_err();
    assert_eq!(other.code, Code::FailedPrecondition, "{other}");
    assert!(other.message.contains("rank 1 expects 2 ranks"), "{other}");
    let one = spawn(begin(1, 3, &engines[1]));
    thread::sleep(Duration::from_millis(500));
    let twice = begin(1, 3, &engines[3]);
    let two = spawn(begin(2, 3, &engines[2]));
    let ends = [here, one, two, spawn(twice)].map(|thread| thread.join().unwrap());
    let refused: Vec<Status> = ends.into_iter().filter_map(Result::err).collect();
    let [twice] = &refused[..] else {
        panic!("one of the two is refused: {refused:?}");
    };
    assert_eq!(twice.code, Code::AlreadyExists, "{twice}");
    assert!(twice.message.contains("rank 1 has come twice"), "{twice}");
}

#[test]
fn a_rank_that_ended_before_all_were_there_may_come_again() {
    let mut engines = engines(4, false);
    let first = address(&engines[0]);
    let begin = |rank: u32, engine: &Engine| {
        let builder = Group::builder(rank, 3, first.clone());
        let builder = builder.join_timeout(Duration::from_secs(60));
        builder.begin(engine).unwrap()
    };
    let spawn = |joining: JoiningGroup| thread::spawn(move || joining.wait().map(|_| ()));
    let here = spawn(begin(0, &engines[0]));
    let ended = engines.pop().unwrap();
    let before = spawn(begin(1, &ended));
    let asked = |engine: &Engine| engine.counters().requests;
    while asked(&engines[0]) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    ended.shutdown(Duration::ZERO).unwrap();
    before.join().unwrap().unwrap_err();
    let again = spawn(begin(1, &engines[1]));
    let last = spawn(begin(2, &engines[2]));
    for rank in [here, again, last] {
        rank.join().unwrap().unwrap();
    }
}

#[test]
fn a_rank_is_its_task_by_its_certificate_wherever_it_says_that_it_is() {
    let authority = Authority::new();
    let variables = [("GRPCXX_TLS", "require"), ("GRPCXX_SHM", "off")];
    let [first, second, other] =
        ["one", "two", "three"].map(|job| authority.start(job, &variables));
    let begin = |rank: u32, engine: &Engine, place: &Engine| {
        let builder = Group::builder(rank, 2, address(&first)).address(address(place));
        let builder = builder.timeout(Duration::from_secs(20));
        builder.begin(engine).unwrap()
    };
    let sum = |joining: JoiningGroup| {
        let group = joining.wait().unwrap();
        let one = Tensor::scalar(1f32);
        group.all_reduce(one, ReduceOp::Sum).wait()
    };
    let run = |place: &Engine| {
        let joining = [begin(0, &first, &first), begin(1, &second, place)];
        thread::scope(|scope| {
            let threads = joining.map(|joining| scope.spawn(|| sum(joining)));
            threads.map(|thread| thread.join().unwrap())
        })
    };
    for result in run(&second) {
        assert_eq!(result.unwrap().value::<f32>().unwrap(), 2.0);
    }
    // Rank 1 says that it is where another task answers. It reaches rank 0 itself.
    let [refused, _] = run(&other);
    let text = refused.unwrap_err().message;
    for part in [
        "certificate is that of grpcxx://c/three/0",
        "two/0 was called",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_it_begins() {
    let engines = engines(1, true);
    let first = address(&engines[0]);
    let error = Group::builder(2, 2, first.clone())
        .join(&engines[0])
        .unwrap_err();
    assert!(
        error.message.contains("no rank 2 in a group of 2"),
        "{error}"
    );
    let group = Group::builder(0, 1, first).join(&engines[0]).unwrap();
    let refused = |error: Status, wanted: &str| {
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
        assert!(error.message.contains(wanted), "{error}");
    };
    let mean = group
        .all_reduce(Tensor::scalar(1i32), ReduceOp::Mean)
        .wait();
    refused(mean.unwrap_err(), "mean of int32 is not defined");
    let sum = group.all_reduce(Tensor::scalar(true), ReduceOp::Sum).wait();
    refused(sum.unwrap_err(), "sum of bool is not defined");
    let root = group.broadcast(Tensor::scalar(1f32), 7).wait();
    refused(root.unwrap_err(), "rank 7 is the root of a broadcast");
    let cut = group
        .reduce_scatter(Tensor::scalar(1f32), ReduceOp::Sum)
        .wait();
    refused(cut.unwrap_err(), "cannot be cut along its first dimension");
    let output = BufferMut::zeroed(3);
    let long = group
        .all_reduce_into(Tensor::scalar(1f32), ReduceOp::Sum, output)
        .wait();
    refused(long.unwrap_err(), "the output has 3 bytes, not 4");
}
