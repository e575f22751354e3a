//! A service whose futures and streams stay on the thread that made them.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use grpcxx::Engine;
use grpcxx::service::{Request, Response, Status, Streaming};
use grpcxx_greeter::corner::{Corner, CornerClient, CornerServer, Note};

struct MyCorner;

impl Corner for MyCorner {
    async fn number(&self, request: Request<Note>) -> Result<Response<Note>, Status> {
        let number = Rc::new(Cell::new(request.get_ref().number));
        grpcxx::runtime::local::sleep(Duration::from_millis(1)).await;
        number.set(number.get() + 1);
        Ok(Response::new(Note {
            number: number.get(),
        }))
    }

    type NumbersStream = Pin<Box<dyn Stream<Item = Result<Note, Status>>>>;

    async fn numbers(
        &self,
        request: Request<Streaming<Note>>,
    ) -> Result<Response<Self::NumbersStream>, Status> {
        let sum = Rc::new(Cell::new(0));
        let sums = request.into_inner().map_ok(move |note| {
            sum.set(sum.get() + note.number);
            Note { number: sum.get() }
        });
        Ok(Response::new(Box::pin(sums)))
    }
}

#[test]
fn methods_may_keep_what_must_not_leave_its_thread() {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    server.add_service(CornerServer::new(MyCorner));
    let engine = Engine::builder().start().unwrap();
    let address = server.local_addr().unwrap().to_string();
    let client = CornerClient::new(engine.connect(&address).unwrap());
    let answer = client.number(Note { number: 7 }).wait().unwrap();
    assert_eq!(answer.into_inner().number, 8);
    let notes = (1..=4).map(|number| Note { number });
    let sums = client.numbers(stream::iter(notes)).wait().unwrap();
    let sums = sums.into_inner().map(|note| note.unwrap().number);
    let sums: Vec<u64> = futures_executor::block_on(sums.collect());
    assert_eq!(sums, [1, 3, 6, 10]);
}
