//! `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`: Ray Train, torchrun, and the Training
//! Operator's PyTorchJob.

use super::{Allocation, Environment, LaunchError, Launcher, Leader};

/// Whether all is there that says who this rank is and where rank 0 is.
pub(super) fn is_told(environment: &Environment) -> bool {
    let mut names = ["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter();
    names.all(|name| environment.text(name).is_some())
}

/// A process that torchrun has started. It runs inside a step of Slurm or MPI, often one torchrun
/// on each host, and starts more processes than those know of.
pub(super) fn torchrun(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    if environment.text("TORCHELASTIC_RUN_ID").is_none() {
        return Ok(None);
    }
    let found = read(environment)?;
    Ok(found.map(|found| Allocation {
        launcher: Launcher::TorchRun,
        ..found
    }))
}

pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    // Both are plain words that other programs use too: one of them alone means nothing.
    if environment.text("RANK").is_none() || environment.text("WORLD_SIZE").is_none() {
        return half(environment);
    }
    let Some((rank, size)) = environment.rank_of(LAUNCHER, "RANK", "WORLD_SIZE")? else {
        return Ok(None);
    };
    let port = match environment.number("MASTER_PORT")? {
        None => None,
        Some(port) => Some(port_beside(port)?),
    };
    let address = environment.text("MASTER_ADDR");
    if size == 1 && address.is_none() {
        // It meets nobody.
        return Ok(None);
    }
    let (leader, address) = match address {
        Some(host) => (Leader::Host(host.to_owned(), port), host),
        None => (Leader::Unknown(": MASTER_ADDR is not set"), ""),
    };
    Ok(Some(Allocation {
        launcher: Launcher::World,
        rank,
        size: Some(size),
        leader,
        job: format!("world {address} {}", port.unwrap_or(0)),
    }))
}

/// Beside `MASTER_ADDR` the words mean what they say, and both must be there.
fn half(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    if environment.text("MASTER_ADDR").is_none() {
        return Ok(None);
    }
    environment
        .rank_of(LAUNCHER, "RANK", "WORLD_SIZE")
        .map(|_| None)
}

/// The port after `MASTER_PORT`, on which the program itself may listen.
fn port_beside(port: u32) -> Result<u16, LaunchError> {
    let beside = u16::try_from(port)
        .ok()
        .and_then(|port| port.checked_add(1));
    beside.ok_or_else(|| LaunchError::Value {
        name: "MASTER_PORT",
        value: port.to_string(),
        allowed: "a port from 1 to 65534".to_owned(),
    })
}

const LAUNCHER: &str = "whoever sets MASTER_ADDR";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rendezvous_is_beside_the_port_of_the_program() {
        let environment = Environment::from([
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "29500"),
        ]);
        let found = read(&environment).unwrap().unwrap();
        assert_eq!(found.rendezvous(None).unwrap(), "10.0.0.7:29501");
    }

    #[test]
    fn words_alone_mean_nothing_and_half_of_them_are_named() {
        assert_eq!(
            read(&Environment::from([("RANK", "captain")])).unwrap(),
            None
        );
        let half = Environment::from([("MASTER_ADDR", "a"), ("RANK", "1")]);
        let text = read(&half).unwrap_err().to_string();
        assert!(text.contains("WORLD_SIZE"), "{text}");
        let alone = Environment::from([("RANK", "0"), ("WORLD_SIZE", "1")]);
        assert_eq!(read(&alone).unwrap(), None);
        let port =
            Environment::from([("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "65535")]);
        let text = read(&port).unwrap_err().to_string();
        assert!(
            text.contains("MASTER_PORT") && text.contains("65535"),
            "{text}"
        );
    }
}
