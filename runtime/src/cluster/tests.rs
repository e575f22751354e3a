use super::*;

fn cluster(text: &str) -> ClusterSpec {
    ClusterSpec::parse(text).unwrap()
}

fn tasks(cluster: &ClusterSpec) -> Vec<String> {
    cluster
        .tasks()
        .map(|(task, address)| format!("{task}={address}"))
        .collect()
}

#[test]
fn the_flag_syntax_is_read_in_order() {
    let text = "worker|a:1;b:2,ps|10.0.0.1:2222";
    let cluster = cluster(text);
    assert_eq!(
        tasks(&cluster),
        [
            "/job:worker/replica:0/task:0=a:1",
            "/job:worker/replica:0/task:1=b:2",
            "/job:ps/replica:0/task:0=10.0.0.1:2222",
        ]
    );
    assert_eq!(cluster.to_string(), text);
    assert_eq!(cluster.total_tasks(), 3);
    assert_eq!(cluster.require(&TaskId::new("worker", 1)), Ok("b:2"));
}

#[test]
fn json_is_read_in_order_with_lists_and_index_maps() {
    let cluster =
        ClusterSpec::from_json(r#"{"worker": ["a:1", "b:2"], "ps": {"3": "c:3", "0": "d:4"}}"#)
            .unwrap();
    assert_eq!(
        tasks(&cluster),
        [
            "/job:worker/replica:0/task:0=a:1",
            "/job:worker/replica:0/task:1=b:2",
            "/job:ps/replica:0/task:0=d:4",
            "/job:ps/replica:0/task:3=c:3",
        ]
    );
}

#[test]
fn tf_config_tells_cluster_and_task() {
    let config = TfConfig::parse(
        r#"{"cluster": {"chief": ["a:1"], "ps": ["b:2"]},
            "task": {"type": "chief", "index": 0}, "environment": "cloud"}"#,
    )
    .unwrap();
    assert_eq!(config.task, Some(TaskId::new("chief", 0)));
    assert_eq!(config.into_cluster().unwrap().total_tasks(), 2);
    let config =
        TfConfig::parse(r#"{"cluster": {"ps": ["b:2"]}, "task": {"type": "ps", "index": "0"}}"#);
    assert_eq!(config.unwrap().task, Some(TaskId::new("ps", 0)));
    let config = TfConfig::parse(r#"{"cluster": {"ps": ["b:2"]}, "task": {"type": "evaluator"}}"#);
    assert_eq!(config.unwrap().task, Some(TaskId::new("evaluator", 0)));
    assert_eq!(
        TfConfig::parse(r#"{"cluster": {"ps": ["b:2"]}}"#)
            .unwrap()
            .task,
        None
    );
}

#[test]
fn tf_config_of_a_program_that_runs_alone_has_no_cluster() {
    for text in [
        "{}",
        r#"{"task": {"type": "worker", "index": 0}}"#,
        r#"{"cluster": {}, "task": {}, "environment": "cloud"}"#,
        r#"{"cluster": null, "task": null}"#,
        r#"{"cluster": {"worker": {}, "ps": null}, "task": {"type": "evaluator", "index": 0}}"#,
    ] {
        let told = TfConfig::parse(text).unwrap();
        assert_eq!(told.cluster, None, "{text}");
        let error = told.into_cluster().unwrap_err().to_string();
        assert!(error.contains("add the tasks"), "{error}");
    }
}

/// What Training Operator writes with `enableDynamicWorker`.
#[test]
fn tf_config_may_tell_a_part_of_the_cluster() {
    let worker = r#"{"cluster": {"worker": {"3": "w3:1"}, "ps": ["p0:1", "p1:1"]},
                     "task": {"type": "worker", "index": 3}}"#;
    let told = TfConfig::parse(worker).unwrap();
    assert!(told.is_sparse);
    let own = told.task.clone().unwrap();
    let cluster = told.into_cluster().unwrap();
    assert_eq!(cluster.address(&own), Some("w3:1"));
    assert_eq!(cluster.total_tasks(), 3);

    let ps = r#"{"cluster": {"worker": {}, "ps": ["p1:1"]}, "task": {"type": "ps", "index": 1}}"#;
    let told = TfConfig::parse(ps).unwrap();
    assert!(told.is_sparse);
    let cluster = told.into_cluster().unwrap();
    assert_eq!(cluster.address(&TaskId::new("ps", 1)), Some("p1:1"));
    assert_eq!(cluster.address(&TaskId::new("ps", 0)), None);

    // A list has its indices where no worker is to come.
    let wrong = r#"{"cluster": {"worker": {"0": "w:1"}, "ps": ["p:1"]},
                    "task": {"type": "ps", "index": 1}}"#;
    assert!(TfConfig::parse(wrong).is_err());
}

#[test]
fn errors_name_place_finding_and_remedy() {
    for (text, error) in [
        (
            "",
            "job 1 of the cluster spec: found ``; write the job's name",
        ),
        (
            "a:1;b:2",
            "job 1 of the cluster spec: found `a:1;b:2`; write the job's name",
        ),
        (
            "ps|a:1,",
            "job 2 of the cluster spec: found ``; write the job's name",
        ),
        (
            "ps|a:1|b:2",
            "job 1 of the cluster spec: found `ps|a:1|b:2`; separate jobs by `,`",
        ),
        ("ps|", "job ps, task 0: found ``; write `host:port`"),
        ("ps|a:1;b", "job ps, task 1: found `b`; write `host:port`"),
        (
            "ps|a:0",
            "job ps, task 0: found `a:0`; write a port from 1 to 65535",
        ),
        ("ps|a:65536", "found `a:65536`; write a port"),
        ("ps|:1", "found `:1`; write a host name"),
        (
            "ps|a b:1",
            "found `a b:1`; write a host name or an IP address before the colon, without",
        ),
        ("ps|a:+1", "found `a:+1`; write a port from 1 to 65535"),
        (
            "ps|::1:1",
            "found `::1:1`; write `host:port`, and an IPv6 address in brackets",
        ),
        (
            "ps|[::1]",
            "found `[::1]`; write an IPv6 address as `[2001:db8::1]:port`",
        ),
        ("ps|[zz]:1", "found `[zz]:1`; write an IPv6 address as"),
        ("ps|a:1,ps|b:1", "found `ps`; name each job once"),
        (
            "p-s|a:1",
            "job 1 of the cluster spec: found `p-s`; a job's name begins with a letter",
        ),
        (
            "ps|a:1;a:1",
            "job ps, task 1: found `a:1`; give each task an address of its own; /job:ps/replica:0/task:0 has",
        ),
    ] {
        let found = ClusterSpec::parse(text).unwrap_err().to_string();
        assert!(found.contains(error), "{text}: {found}");
    }
    for (text, error) in [
        ("[1]", "the cluster spec, line 1, column"),
        ("{}", "the cluster spec: found `no job`; add the tasks"),
        (
            "{\"ps\":\n [\"a:1\" \"b:1\"]}",
            "the cluster spec, line 2, column",
        ),
        ("{\"ps\": [1]}", "expected a string"),
        (
            "{\"ps\": 7}",
            "a list of addresses, or an object of task index to address",
        ),
        (
            "{\"ps\": {\"x\": \"a:1\"}}",
            "the index of a task is a whole number",
        ),
        (
            "{\"ps\": {\"0\": \"a:1\", \"0\": \"b:1\"}}",
            "job ps, task 0: found `b:1`; name each task once",
        ),
        (
            "{\"ps\": [\"a:1\"], \"ps\": [\"b:1\"]}",
            "found `ps`; name each job once",
        ),
        (
            "{\"ps\": []}",
            "found `ps`; give each job at least one task",
        ),
    ] {
        let found = ClusterSpec::from_json(text).unwrap_err().to_string();
        assert!(found.contains(error), "{text}: {found}");
    }
    for (text, error) in [
        (
            "{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"index\": 0}}",
            "`task` of TF_CONFIG: found `index 0`; name its job too",
        ),
        (
            "{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"type\": \"ps\", \"index\": 1}}",
            "found `/job:ps/replica:0/task:1`; name a task that it has; job ps has 1 tasks",
        ),
        (
            "{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"type\": \"worker\"}}",
            "its jobs are ps",
        ),
    ] {
        let found = TfConfig::parse(text).unwrap_err().to_string();
        assert!(found.contains(error), "{text}: {found}");
    }
}

#[test]
fn sizes_are_limited() {
    let many: Vec<String> = (0..=TASKS_MAX).map(|task| format!("h{task}:1")).collect();
    let error = ClusterSpec::parse(&format!("ps|{}", many.join(";"))).unwrap_err();
    assert!(error.to_string().contains("at most 65535 tasks"), "{error}");
    let list = format!("{{\"ps\": [\"{}\"]}}", many.join("\",\""));
    let error = ClusterSpec::from_json(&list).unwrap_err();
    assert!(error.to_string().contains("at most 65535 tasks"));
    let cluster = cluster(&format!("ps|{}", many[..TASKS_MAX].join(";")));
    assert_eq!(cluster.total_tasks(), TASKS_MAX);
    let error = ClusterSpec::parse(&"x".repeat(TEXT_BYTES_MAX + 1)).unwrap_err();
    assert!(error.to_string().len() < 200);
    assert!(ClusterSpec::parse(&format!("ps|{}:1", "h".repeat(254))).is_err());
}

#[test]
fn targets_and_devices() {
    let task = TaskId::new("worker", 12);
    assert_eq!(task.to_string().parse(), Ok(task.clone()));
    assert_eq!(
        task.device("CPU", 0),
        "/job:worker/replica:0/task:12/device:CPU:0"
    );
    for text in [
        "worker:1",
        "/job:/replica:0/task:1",
        "/job:a/replica:1/task:1",
        "/job:a/replica:0/task:",
        "/job:a/replica:0/task:+1",
        "/job:a/replica:0/task:1/device:CPU:0",
    ] {
        assert!(text.parse::<TaskId>().is_err(), "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        let _ = ClusterSpec::parse(&text);
        let _ = ClusterSpec::from_json(&text);
        let _ = TfConfig::parse(&text);
        let _ = text.parse::<TaskId>();
    }

    #[test]
    fn what_is_written_reads_back(sizes in proptest::collection::vec(1_usize..5, 1..5)) {
        let jobs: Vec<String> = sizes.iter().enumerate().map(|(job, tasks)| {
            let tasks: Vec<String> = (0..*tasks).map(|task| format!("h{job}-{task}:7")).collect();
            format!("job{job}|{}", tasks.join(";"))
        }).collect();
        let spec = cluster(&jobs.join(","));
        proptest::prop_assert_eq!(cluster(&spec.to_string()), spec);
    }
}

#[test]
fn ipv6_addresses_stand_in_brackets() {
    let cluster = ClusterSpec::parse("ps|[::1]:2222;[2001:db8::2]:2222,worker|a:1").unwrap();
    assert_eq!(cluster.address(&TaskId::new("ps", 0)), Some("[::1]:2222"));
    assert_eq!(
        split_address("[2001:db8::2]:2222"),
        Ok(("2001:db8::2", 2222))
    );
    let text = cluster.to_string();
    assert_eq!(ClusterSpec::parse(&text).unwrap(), cluster);
}
