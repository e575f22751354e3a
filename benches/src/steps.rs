use grpcxx_fusion::Plan;
use grpcxx_rpc::{Code, GraphCall, KeyList, Request, Response, Status, Tensor, Text};

use super::options::RunOptions;
use super::payload::Payload;
use super::wire;

/// The calls of a step, planned once and made again and again.
#[derive(Debug)]
pub(super) struct StepPlan {
    /// Calls of one phase run at once; the next phase begins when all have ended.
    phases: Vec<Vec<PlannedCall>>,
    keys: Vec<Text>,
    push: Text,
    payload: Payload,
    verify: bool,
}

/// Tensors that share a call.
#[derive(Debug)]
enum PlannedCall {
    Pull { indices: Vec<usize>, keys: KeyList },
    Push(Vec<usize>),
}

impl StepPlan {
    /// Plans the steps of `options`.
    pub(super) fn new(options: &RunOptions) -> Result<Self, Status> {
        let groups = groups(options)?;
        let keys: Vec<Text> = (0..options.payload.count).map(wire::key).collect();
        let mut phases = Vec::new();
        if options.op.pulls() {
            phases.push(
                groups
                    .iter()
                    .map(|indices| PlannedCall::Pull {
                        indices: indices.clone(),
                        keys: indices.iter().map(|index| keys[*index].clone()).collect(),
                    })
                    .collect(),
            );
        }
        if options.op.pushes() {
            phases.push(groups.into_iter().map(PlannedCall::Push).collect());
        }
        let payload = if options.op.pushes() || options.verify {
            Payload::new(&options.payload)?
        } else {
            Payload::unknown(&options.payload)
        };
        Ok(Self {
            phases,
            keys,
            push: Text::from(wire::PUSH),
            payload,
            verify: options.verify,
        })
    }

    pub(super) fn phases(&self) -> usize {
        self.phases.len()
    }

    pub(super) fn calls_of(&self, phase: usize) -> usize {
        self.phases[phase].len()
    }

    /// Calls of a whole step.
    pub(super) fn calls(&self) -> u64 {
        self.phases.iter().map(|phase| phase.len() as u64).sum()
    }

    /// The key of a call of a phase that asks for one tensor.
    #[inline]
    pub(super) fn key(&self, phase: usize, call: usize) -> Option<&Text> {
        match &self.phases[phase][call] {
            PlannedCall::Pull { keys, .. } => match &keys[..] {
                [key] => Some(key),
                _ => None,
            },
            PlannedCall::Push(_) => None,
        }
    }

    /// Any other call of a phase, in the session with this number.
    pub(super) fn request(
        &self,
        phase: usize,
        call: usize,
        session: i64,
    ) -> Result<Request, Status> {
        Ok(match &self.phases[phase][call] {
            PlannedCall::Pull { keys, .. } => Request::FuseRecvTensor {
                step_id: session,
                keys: keys.clone(),
            },
            PlannedCall::Push(indices) => {
                let feeds = indices
                    .iter()
                    .map(|index| Ok((self.keys[*index].clone(), self.payload.outgoing(*index)?)))
                    .collect::<Result<_, Status>>()?;
                Request::StarRunGraph(Box::new(GraphCall {
                    graph_handle: self.push.clone(),
                    step_id: session as u64,
                    feeds,
                    ..GraphCall::default()
                }))
            }
        })
    }

    /// Takes the answer to a call.
    pub(super) fn accept(
        &self,
        phase: usize,
        call: usize,
        response: &Response,
    ) -> Result<(), Status> {
        match (&self.phases[phase][call], response) {
            (PlannedCall::Pull { .. }, Response::Tensors(tensors)) => {
                self.accept_tensors(phase, call, tensors)
            }
            (PlannedCall::Push(_), Response::Fetched(results)) if results.is_empty() => Ok(()),
            _ => Err(something_else()),
        }
    }

    /// Takes the tensors that a call asked for.
    #[inline]
    pub(super) fn accept_tensors(
        &self,
        phase: usize,
        call: usize,
        tensors: &[Tensor],
    ) -> Result<(), Status> {
        match &self.phases[phase][call] {
            PlannedCall::Pull { indices, .. } if indices.len() == tensors.len() => indices
                .iter()
                .zip(tensors)
                .try_for_each(|(index, tensor)| self.payload.accept(*index, tensor, self.verify)),
            _ => Err(something_else()),
        }
    }
}

fn something_else() -> Status {
    Status::new(
        Code::Internal,
        "the server answered with something else than it was asked for",
    )
}

/// Which tensors share a call.
fn groups(options: &RunOptions) -> Result<Vec<Vec<usize>>, Status> {
    let sizes = options.payload.sizes();
    let Some(limits) = &options.fusion else {
        return Ok((0..sizes.len()).map(|index| vec![index]).collect());
    };
    let mut plan = Plan::new();
    plan.fill(sizes, limits)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    Ok(plan
        .groups()
        .map(|group| group.tensors().map(|tensor| tensor.index).collect())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn plan(op: Op, is_fused: bool, count: usize) -> StepPlan {
        let mut options = RunOptions {
            op,
            ..RunOptions::default()
        };
        options.payload.count = count;
        if !is_fused {
            options.fusion = None;
        }
        StepPlan::new(&options).unwrap()
    }

    #[test]
    fn a_worker_pulls_then_pushes_and_fusion_decides_the_calls() {
        assert_eq!(plan(Op::Pull, true, 1).calls(), 1);
        assert_eq!(plan(Op::Pull, false, 100).calls(), 100);
        assert_eq!(plan(Op::Ps, true, 100).calls(), 2);
        assert_eq!(plan(Op::Ps, false, 100).phases(), 2);
        let single = plan(Op::Latency, true, 1);
        assert_eq!(single.key(0, 0), Some(&wire::key(0)));
        assert_eq!(plan(Op::Rate, true, 3).calls(), 3);
        let fused = plan(Op::Rate, true, 4);
        assert_eq!(fused.key(0, 0), None);
        let fused = fused.request(0, 0, 9).unwrap();
        assert!(matches!(fused, Request::FuseRecvTensor { keys, .. } if keys.len() == 4));
    }

    #[test]
    fn an_answer_of_another_kind_is_an_error() {
        let plan = plan(Op::Pull, true, 1);
        let status = plan
            .accept(0, 0, &Response::Fetched(grpcxx_rpc::NamedTensors::new()))
            .unwrap_err();
        assert_eq!(status.code, Code::Internal);
    }
}
