//! Tensors in messages, through both doors.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use grpcxx::server::Server;
use grpcxx::service::{Code, Request, Response, Status, Streaming, TensorMessage};
use grpcxx::{Engine, Shape, Tensor};
use grpcxx_greeter::model::{Layer, Model, ModelClient, ModelServer};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::door;
use crate::support::{grpcio, run_client};

struct MyModel;

/// Multiplies the weights, and says whether they were read where they had landed.
fn scaled(layer: Layer) -> Result<(Layer, bool), Status> {
    let weights = Tensor::try_from(layer.weights.unwrap_or_default())?;
    let has_landed_aligned = weights.as_slice::<f32>().is_some();
    let elements = weights.elements::<f32>()?;
    let elements = elements.iter().map(|element| element * layer.factor);
    let weights = Tensor::from_vec(weights.shape.clone(), elements.collect())?;
    let weights = Some(TensorMessage::from(weights));
    Ok((Layer { weights, ..layer }, has_landed_aligned))
}

impl Model for MyModel {
    async fn scale(&self, request: Request<Layer>) -> Result<Response<Layer>, Status> {
        let (layer, has_landed_aligned) = scaled(request.into_inner())?;
        let mut response = Response::new(layer);
        let landed = has_landed_aligned.to_string();
        response.metadata_mut().insert("aligned", landed)?;
        Ok(response)
    }

    type ScaleAllStream = Pin<Box<dyn Stream<Item = Result<Layer, Status>> + Send>>;

    async fn scale_all(
        &self,
        request: Request<Streaming<Layer>>,
    ) -> Result<Response<Self::ScaleAllStream>, Status> {
        let layers = request.into_inner();
        let scaled = layers.map(|layer| Ok(scaled(layer?)?.0));
        Ok(Response::new(Box::pin(scaled)))
    }
}

fn layer(len: usize, factor: f32) -> Layer {
    let shape = Shape::new(&[2, len as u64 / 2]).unwrap();
    let elements = (0..len).map(|at| at as f32 * factor).collect();
    let weights = Tensor::from_vec(shape, elements).unwrap();
    Layer {
        factor: 2.0,
        weights: Some(weights.into()),
    }
}

/// A client over star, and the engines of both ends.
fn start_over_star() -> (ModelClient, [Engine; 2]) {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    server.add_service(ModelServer::new(MyModel));
    let engine = Engine::builder().start().unwrap();
    let address = server.local_addr().unwrap().to_string();
    let client = ModelClient::new(engine.connect(&address).unwrap());
    (client, [server, engine])
}

const LENGTHS: [usize; 6] = [0, 2, 1022, 1024, 100_000, 2 << 20];

#[test]
fn tensors_cross_over_star_and_are_read_where_they_land() {
    let (client, _engines) = start_over_star();
    for len in LENGTHS {
        let answer = client.scale(layer(len, 1.0)).wait().unwrap();
        if len >= 1024 {
            assert_eq!(answer.metadata().get("aligned"), Some("true"), "{len}");
        }
        let answer = answer.into_inner();
        assert_eq!(answer, layer(len, 2.0), "{len}");
        let weights = Tensor::try_from(answer.weights.unwrap()).unwrap();
        assert!(len < 1024 || weights.as_slice::<f32>().is_some(), "{len}");
    }
    let layers = LENGTHS.map(|len| layer(len, 1.0));
    let answers = client.scale_all(stream::iter(layers)).wait().unwrap();
    let answers: Vec<Layer> =
        futures_executor::block_on(answers.into_inner().try_collect()).unwrap();
    assert_eq!(answers, LENGTHS.map(|len| layer(len, 2.0)));
}

#[test]
fn a_field_that_is_not_set_is_no_tensor() {
    let (client, _engines) = start_over_star();
    let status = client.scale(Layer::default()).wait().unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains("without a type"), "{status}");
}

fn start() -> (Server, SocketAddr) {
    let (server, [grpc, ..]) = door::start_with("", "");
    server.add_service(ModelServer::new(MyModel)).unwrap();
    (server, grpc)
}

#[tokio::test]
async fn tensors_cross_through_the_grpc_door() {
    let (server, grpc) = start();
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let client = Grpc::new(channel.connect().await.unwrap());
    let mut client = client.max_decoding_message_size(64 << 20);
    for len in LENGTHS {
        client.ready().await.unwrap();
        let request = tonic::Request::new(layer(len, 1.0));
        let path = "/model.Model/Scale".parse().unwrap();
        let codec = ProstCodec::<Layer, Layer>::default();
        let answer = client.unary(request, path, codec).await.unwrap();
        assert_eq!(answer.into_inner(), layer(len, 2.0), "{len}");
    }
    client.ready().await.unwrap();
    let layers = stream::iter(LENGTHS.map(|len| layer(len, 1.0)));
    let path = "/model.Model/ScaleAll".parse().unwrap();
    let codec = ProstCodec::<Layer, Layer>::default();
    let answers = client.streaming(tonic::Request::new(layers), path, codec);
    let answers = answers.await.unwrap().into_inner();
    let answers: Vec<Layer> = answers.try_collect().await.unwrap();
    assert_eq!(answers, LENGTHS.map(|len| layer(len, 2.0)));
    tokio::task::spawn_blocking(move || server.shutdown(Duration::ZERO))
        .await
        .unwrap();
}

#[test]
fn a_client_of_grpcio_reads_tensors_by_their_description() {
    let Some(python) = grpcio() else {
        return;
    };
    let (server, grpc) = start();
    run_client(&python, "tensors.py", grpc, 2);
    server.shutdown(Duration::ZERO);
}
