//! gRPC's reflection, which describes all services that are there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field, string};
use prost::{DecodeError, Message};
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use crate::Backend;
use crate::lock::lock;
use crate::services::{DESCRIPTORS, INSPECT_DESCRIPTORS};

/// Describes the services of a task. What it answers with is made anew only where others are there.
pub(crate) struct Reflection {
    backend: Arc<dyn Backend>,
    made: Mutex<Option<Made>>,
}

struct Made {
    /// The descriptors of the services that the program has registered.
    registered: Vec<&'static [u8]>,
    routes: Routes,
}

impl Reflection {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        let made = Mutex::new(None);
        Arc::new(Self { backend, made })
    }

    /// What answers calls of both versions of reflection.
    pub(crate) fn routes(&self) -> Routes {
        let mut services = self.backend.services();
        services.sort_unstable_by_key(|service| service.name);
        let registered: Vec<_> = services.iter().map(|service| service.descriptors).collect();
        let mut made = lock(&self.made);
        match &*made {
            Some(made) if made.registered == registered => made.routes.clone(),
            _ => {
                let routes = routes(&registered);
                *made = Some(Made {
                    registered,
                    routes: routes.clone(),
                });
                routes
            }
        }
    }
}

fn routes(registered: &[&[u8]]) -> Routes {
    // A program may bring descriptors that are none; the others are to be seen all the same.
    let valid = "the descriptors are constants that a test compares with their sources";
    try_routes(registered).unwrap_or_else(|_| try_routes(&[]).expect(valid))
}

fn try_routes(registered: &[&[u8]]) -> Result<Routes, Error> {
    let own = [
        DESCRIPTORS,
        INSPECT_DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
    ];
    let sets = own.iter().chain(registered);
    let sets = sets_apart(sets.copied())?;
    let builder = || {
        let register = Builder::register_encoded_file_descriptor_set;
        sets.iter()
            .fold(Builder::configure(), |all, set| register(all, set))
    };
    let routes = Routes::new(builder().build_v1()?).add_service(builder().build_v1alpha()?);
    Ok(routes.prepare())
}

/// These descriptor sets, in which files that say different things have different names: the name
/// of a file is relative to the folder that was compiled, and reflection keeps one file of each
/// name. The first one has it as it is; before others stands their package, and a number if need
/// be.
fn sets_apart<'a>(sets: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, DecodeError> {
    let mut named = HashMap::<String, FileHead>::new();
    let apart = sets.map(|set| {
        let mut set = FileSet::decode(set)?;
        let mut renamed = HashMap::new();
        for file in &set.files {
            let head = FileHead::decode(&file[..])?;
            let name = names_for(&head)
                .find(|name| named.get(name).is_none_or(|known| known.has_all_of(&head)))
                .expect("there is always another name");
            if name != head.name {
                renamed.insert(head.name.clone(), name.clone());
            }
            named.entry(name).or_insert(head);
        }
        if !renamed.is_empty() {
            for file in &mut set.files {
                *file = rename(file, &renamed)?.into();
            }
        }
        Ok(set.encode_to_vec())
    });
    apart.collect()
}

/// The names that a file may have, the best one first.
fn names_for(head: &FileHead) -> impl Iterator<Item = String> {
    let FileHead { name, package, .. } = head;
    let numbered = (2_u64..).map(move |number| format!("{package}/{number}/{name}"));
    [name.clone(), format!("{package}/{name}")]
        .into_iter()
        .chain(numbered)
}

/// The descriptor of a file, in which it and what it imports have their new names. All else stays,
/// also options that nobody here knows.
fn rename(file: &[u8], renamed: &HashMap<String, String>) -> Result<Vec<u8>, DecodeError> {
    let (mut rest, mut all) = (file, Vec::with_capacity(file.len()));
    while !rest.is_empty() {
        let field = rest;
        let (number, kind) = decode_key(&mut rest)?;
        let context = DecodeContext::default();
        if kind == WireType::LengthDelimited && [FIELD_NAME, FIELD_DEPENDENCY].contains(&number) {
            let mut name = String::new();
            string::merge(kind, &mut name, &mut rest, context)?;
            string::encode(number, renamed.get(&name).unwrap_or(&name), &mut all);
        } else {
            skip_field(kind, number, &mut rest, context)?;
            all.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    Ok(all)
}

/// A `FileDescriptorSet` with its files as they are.
#[derive(Message)]
struct FileSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

/// What is looked at of a `FileDescriptorProto`.
#[derive(Message)]
struct FileHead {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Named>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Named>,
}

impl FileHead {
    /// Whether all that the other file describes is described here. Two compilers may write the
    /// same file in different bytes.
    fn has_all_of(&self, other: &Self) -> bool {
        let all_in = |kept: &[Named], other: &[Named]| other.iter().all(|name| kept.contains(name));
        self.package == other.package
            && all_in(&self.messages, &other.messages)
            && all_in(&self.enums, &other.enums)
            && all_in(&self.services, &other.services)
    }
}

/// A message, an enum or a service of a file.
#[derive(Message, PartialEq)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

// Fields of FileDescriptorProto.
const FIELD_NAME: u32 = 1;
const FIELD_DEPENDENCY: u32 = 3;
