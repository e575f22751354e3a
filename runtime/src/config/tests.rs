use std::collections::BTreeMap;
use std::num::NonZeroU16;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<(Config, Vec<Warning>), ConfigError> {
    let environment: BTreeMap<&str, &str> = pairs.iter().copied().collect();
    Config::read(
        |name| environment.get(name).map(|value| (*value).to_owned()),
        environment.keys(),
    )
}

fn config(pairs: &[(&str, &str)]) -> Config {
    let (config, warnings) = read(pairs).unwrap();
    assert_eq!(warnings, [], "{pairs:?}");
    config
}

fn at_most(cores: u16) -> CoreLimit {
    CoreLimit::AtMost(NonZeroU16::new(cores).unwrap())
}

#[test]
fn an_empty_environment_gives_the_defaults() {
    let config = config(&[]);
    assert_eq!(config, Config::default());
    assert_eq!(
        (config.ps_cores, config.worker_cores),
        (at_most(16), at_most(16))
    );
    assert!(!config.ps_polling && !config.worker_polling);
    assert!(config.ps_unpinned && config.worker_unpinned && config.ps_graph_fusion);
    assert_eq!(config.connection_timeout, Duration::from_secs(120));
    assert_eq!(config.endpoint_map_directory, None);
    assert_eq!(config.flow_control_tensors, 16);
    assert_eq!(config.bind_address, None);
}

#[test]
fn checklist_20_each_job_reads_its_own_variables() {
    let config = config(&[
        ("NETWORK_PS_CORE_NUMBER", "3"),
        ("NETWORK_WORKER_CORE_NUMBER", "-1"),
        ("PS_ENABLE_POLLING", "1"),
        ("WORKER_DISABLE_PIN_CORES", "FALSE"),
    ]);
    let [ps, worker, chief, other] = ["ps", "worker", "chief", "evaluator"].map(JobKind::of);
    let shards = [ps, worker, chief, other].map(|job| config.shards(job, 40));
    assert_eq!(shards, [3, 40, 40, 16]);
    let polling = [ps, worker, chief, other].map(|job| config.polling(job));
    assert_eq!(polling, [true, false, false, true]);
    let pinning = [ps, worker, chief, other].map(|job| config.pinning(job));
    assert_eq!(pinning, [false, true, true, false]);
}

#[test]
fn an_own_number_of_shards_comes_before_the_formula() {
    let config = config(&[("GRPCXX_SHARDS", "2"), ("NETWORK_PS_CORE_NUMBER", "9")]);
    assert_eq!(config.shards(JobKind::Ps, 40), 2);
}

#[test]
fn checklist_21_booleans() {
    for (text, value) in [
        ("true", true),
        ("True", true),
        ("TRUE", true),
        ("1", true),
        ("false", false),
        ("fAlse", false),
        ("0", false),
    ] {
        assert_eq!(
            config(&[("PS_ENABLE_POLLING", text)]).ps_polling,
            value,
            "{text}"
        );
    }
    for text in ["", "yes", "on", " true", "2"] {
        let (config, warnings) = read(&[("PS_DISABLE_PIN_CORES", text)]).unwrap();
        assert!(config.ps_unpinned);
        assert_eq!(
            warnings[0].message,
            format!(
                "PS_DISABLE_PIN_CORES=`{text}` is not true, false, 1 or 0; the default, `true`, counts"
            )
        );
    }
}

#[test]
fn checklist_21_a_bad_number_counts_as_the_default() {
    for text in ["", "many", "1.5", "99999999999999999999"] {
        let (config, warnings) = read(&[("NETWORK_WORKER_CORE_NUMBER", text)]).unwrap();
        assert_eq!(config.worker_cores, at_most(16));
        assert_eq!(warnings.len(), 1, "{text}");
    }
    let (config, warnings) = read(&[("NETWORK_MAX_CONNECTION_TIMEOUT", "soon")]).unwrap();
    assert_eq!(config.connection_timeout, Duration::from_secs(120));
    assert!(warnings[0].message.contains("`120000`"));
}

#[test]
fn checklist_21_zero_cores_are_refused() {
    let error = read(&[("NETWORK_PS_CORE_NUMBER", "0")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "NETWORK_PS_CORE_NUMBER=`0`: a task needs at least 1 shard; write 1 or more, or a negative number for no limit"
    );
    assert!(read(&[("GRPCXX_SHARDS", "0")]).is_err());
}

#[test]
fn a_negative_core_number_is_no_limit() {
    let config = config(&[("NETWORK_PS_CORE_NUMBER", " -1 ")]);
    assert_eq!(config.ps_cores, CoreLimit::Unlimited);
}

#[test]
fn own_settings_are_read() {
    let config = config(&[
        ("GRPCXX_DRIVER", "epoll"),
        ("GRPCXX_HOST", "native"),
        ("GRPCXX_CPUS", "0-2,5"),
        ("GRPCXX_SPIN_US", "0"),
        ("GRPCXX_CPU_LATENCY_US", "20"),
        ("GRPCXX_ARENA_BYTES", "512MiB"),
        ("GRPCXX_BIND_ADDRESS", "127.0.0.1"),
        ("GRPCXX_METRICS_ADDRESS", "[::1]:9100"),
        ("GRPCXX_LOG_FORMAT", "json"),
        ("GRPCXX_LOG", ""),
        ("NETWORK_MAX_CONNECTION_TIMEOUT", "-5"),
        ("TF_SEASTAR_ENDPOINT_MAP_PATH", "/etc/grpcxx"),
    ]);
    assert_eq!(config.driver, DriverSetting::Epoll);
    assert_eq!(config.host, HostSetting::Native);
    assert_eq!(config.cpus.unwrap().as_slice(), [0, 1, 2, 5]);
    assert_eq!(config.spin, Duration::ZERO);
    assert_eq!(config.cpu_latency, Some(Duration::from_micros(20)));
    assert_eq!(config.arena_bytes, Some(512 << 20));
    assert_eq!(config.metrics_address.unwrap().port(), 9100);
    assert_eq!(config.log_format, LogFormat::Json);
    assert_eq!(config.log, "info");
    assert_eq!(config.connection_timeout, Duration::ZERO);
    assert_eq!(config.endpoint_map_directory, Some("/etc/grpcxx".into()));
}

#[test]
fn all_problems_are_told_together() {
    let error = read(&[
        ("GRPCXX_DRIVER", "uring"),
        ("GRPCXX_CPUS", "3-1"),
        ("GRPCXX_FRAME_BYTES_MAX", "32TiB"),
        ("NETWORK_PS_CORE_NUMBER", "0"),
        ("OTHER_PROGRAM", "x"),
    ])
    .unwrap_err();
    let text = error.to_string();
    assert_eq!(error.problems.len(), 4, "{text}");
    for part in [
        "4 settings are wrong:",
        "GRPCXX_DRIVER=`uring` is not auto, io_uring or epoll",
        "GRPCXX_CPUS=`3-1`: range `3-1` runs backward",
        "GRPCXX_FRAME_BYTES_MAX=`32TiB` is not a number of bytes from 65536 to 17592186044416",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_unknown_name_is_a_warning_that_names_the_nearest() {
    let (config, warnings) = read(&[("GRPCXX_HOTS", "native"), ("OTHER_PROGRAM", "x")]).unwrap();
    assert_eq!(config, Config::default());
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    assert_eq!(
        warning.message,
        "GRPCXX_HOTS is not a setting; did you mean GRPCXX_HOST? docs/configuration.md lists all; it has no effect"
    );
    assert_eq!(check_name("GRPCXX_HOST"), Ok(()));
    assert!(check_name("GRPCXX_HOTS").is_err());
}

#[test]
fn what_container_platforms_say_of_services_is_no_setting() {
    // For services called grpcxx, grpcxx-ps and grpcxx-rdma.
    let config = config(&[
        ("GRPCXX_SERVICE_HOST", "10.0.0.1"),
        ("GRPCXX_SERVICE_PORT", "7070"),
        ("GRPCXX_SERVICE_PORT_STAR", "7070"),
        ("GRPCXX_PORT", "tcp://10.0.0.1:7070"),
        ("GRPCXX_PORT_7070_TCP", "tcp://10.0.0.1:7070"),
        ("GRPCXX_PORT_7070_TCP_PROTO", "tcp"),
        ("GRPCXX_PORT_7070_TCP_PORT", "7070"),
        ("GRPCXX_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("GRPCXX_PS_SERVICE_HOST", "10.0.0.2"),
        ("GRPCXX_PS_PORT_53_UDP", "udp://10.0.0.2:53"),
        ("GRPCXX_RDMA_PORT", "tcp://10.0.0.3:7070"),
    ]);
    assert_eq!(config, Config::default());
    let (_, warnings) = read(&[("GRPCXX_PORT", "7070"), ("GRPCXX_PORT_STAR_TCP", "1")]).unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(read(&[("GRPCXX_RDMA_PORT", "http://x")]).is_err());
}

#[test]
fn own_switches_understand_the_same_words() {
    let names = ["GRPCXX_SHM_LEND", "GRPCXX_HUGE_PAGES", "GRPCXX_EXTENSIONS"];
    for (words, is_on) in [
        (["on", "true", "1", "yes", "auto", "On", "TRUE"], true),
        (["off", "false", "0", "no", "OFF", "No", "False"], false),
    ] {
        for word in words {
            let given = config(&[("GRPCXX_SHM", word), ("GRPCXX_RDMA", word)]);
            assert_eq!(given.shm == ShmSetting::Auto, is_on, "{word}");
            assert_eq!(given.rdma == RdmaSetting::Auto, is_on, "{word}");
            let given = config(&names.map(|name| (name, word)));
            let given = [given.shm_lend, given.huge_pages, given.extensions];
            assert_eq!(given, [is_on; 3], "{word}");
        }
    }
    for word in ["2", "maybe", "o n"] {
        assert!(read(&[("GRPCXX_SHM", word)]).is_err(), "{word}");
    }
}

#[test]
fn each_variable_is_named_once() {
    let mut names: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), VARIABLES.len());
}

#[test]
fn the_documentation_shows_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let document = std::fs::read_to_string(path).unwrap_or_default();
    let table = markdown();
    assert!(
        document.contains(&table),
        "docs/configuration.md differs from the code; put this into it:\n\n{table}"
    );
}
