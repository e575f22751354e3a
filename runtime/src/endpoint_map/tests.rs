use super::*;

fn parse(text: &str) -> Result<EndpointMap, EndpointMapError> {
    EndpointMap::parse(Path::new("dir/.endpoint_map"), text.as_bytes())
}

fn map(text: &str) -> EndpointMap {
    parse(text).unwrap()
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn cluster() -> ClusterSpec {
    ClusterSpec::parse("ps|a:1,worker|b:2").unwrap()
}

/// The star address of the first task of [`cluster`], or what is wrong with it.
fn first(text: &str) -> Result<String, String> {
    map(text)
        .star_address(&TaskId::new("ps", 0), "a:1")
        .map(|star| star.to_string())
        .map_err(|error| error.to_string())
}

fn pairs(map: &EndpointMap) -> Vec<(&str, &str)> {
    map.entries()
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_str()))
        .collect()
}

#[test]
fn checklist_22_file_missing_or_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let error = EndpointMap::read(&path).unwrap_err();
    assert_eq!(error, EndpointMapError::Missing { path: path.clone() });
    assert!(error.to_string().contains("grpcxx endpoint-map generate"));
    std::fs::create_dir(&path).unwrap();
    let error = EndpointMap::read(&path).unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "a:1=s:2\n").unwrap();
    assert_eq!(pairs(&EndpointMap::read(&path).unwrap()), [("a:1", "s:2")]);
}

#[test]
fn checklist_22_blank_lines_and_lines_without_or_with_many_signs() {
    let text = "\n# a comment\na:1=s:1\n  \n\r\n#\nb:2=s:2";
    assert_eq!(pairs(&map(text)), [("a:1", "s:1"), ("b:2", "s:2")]);
    assert_eq!(map(text).entry("b:2").unwrap().line, 7);
    assert_eq!(
        error("a:1=s:1\na:2 s:2\r\n"),
        "dir/.endpoint_map:2:8: found `a:2 s:2`; write `grpc_host:grpc_port=star_host:star_port`, or begin a comment with `#`"
    );
    assert_eq!(
        error("a:1=s:1=x"),
        "dir/.endpoint_map:1:8: found `a:1=s:1=x`; write one `=` only, and each task on a line of its own: `grpc_host:grpc_port=star_host:star_port`"
    );
    assert!(error("# a=b=c").contains("1:6: found `# a=b=c`; write comments without `=`"));
    assert_eq!(pairs(&map("# a=b")), [("# a", "b")]);
    assert_eq!(error("x\ny\n").lines().count(), 2);
}

#[test]
fn checklist_22_white_space_is_not_trimmed() {
    assert_eq!(pairs(&map(" a:1 = s:1 ")), [(" a:1 ", " s:1 ")]);
    let missing = first("a:1 =s:1").unwrap_err();
    assert!(missing.contains("line 1 has `a:1 `, but keys must match byte for byte"));
    assert!(first("a:1= s:1").unwrap_err().contains("without spaces"));
}

#[test]
fn checklist_22_crlf() {
    let map = map("a:1=s:1\r\nb:2=s:2\r\n");
    assert_eq!(pairs(&map), [("a:1", "s:1\r"), ("b:2", "s:2\r")]);
    assert_eq!(first("a:1=s:1\r\n"), Ok("s:1".to_owned()));
    assert!(map.check(&cluster()).is_clean());
}

#[test]
fn checklist_22_keys_match_byte_for_byte() {
    let cluster = ClusterSpec::parse("ps|localhost:1").unwrap();
    let report = map("127.0.0.1:1=s:1").check(&cluster);
    assert!(report.wrong[0].wanted.contains("line 1 has `127.0.0.1:1`"));
    assert_eq!(map("A:1=s:1").entry("a:1"), None);
    let report = EndpointMap::parse(Path::new("x"), b"a:1=s:1\n\xFF:1=s:2\nb:2=s:2\n").unwrap();
    assert!(report.check(&self::cluster()).wrong.is_empty());
}

#[test]
fn checklist_22_the_last_of_equal_keys_wins() {
    let text = "a:1=s:1\nb:2=s:2\na:1=s:3\n";
    assert_eq!(first(text), Ok("s:3".to_owned()));
    let report = map(text).check(&cluster());
    assert_eq!((report.wrong.len(), report.odd.len()), (0, 1));
    assert_eq!(
        report.odd[0].to_string(),
        "1:1: found `a:1`; remove one of the lines; line 3 has the same key and counts"
    );
}

#[test]
fn checklist_22_extra_entries_are_ignored() {
    let report = map("a:1=s:1\nb:2=s:2\nold:3=nonsense\n=\n# a=b\n").check(&cluster());
    assert!(report.wrong.is_empty());
    let lines: Vec<usize> = report.odd.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [3, 4, 5]);
}

#[test]
fn checklist_22_missing_entries_are_all_told() {
    let report = map("").check(&cluster());
    assert_eq!(report.wrong.len(), 2);
    let error = map("").star_addresses(&cluster()).unwrap_err().to_string();
    assert_eq!(
        error,
        "dir/.endpoint_map: found no line for /job:ps/replica:0/task:0; Star ip and port not found for job name: ps. Write `a:1=star_host:star_port`\n\
         dir/.endpoint_map: found no line for /job:worker/replica:0/task:0; Star ip and port not found for job name: worker. Write `b:2=star_host:star_port`"
    );
}

#[test]
fn checklist_22_values_that_are_no_pair() {
    for value in ["", "s", "7", "[::1]", "[zz]:1", "::1", "s:1:2", "a b:1"] {
        let error = first(&format!("a:1={value}\r")).unwrap_err();
        assert!(error.starts_with("dir/.endpoint_map:1:5: "), "{error}");
        let text = format!("Could not interpret \"{value}\" as a host-port pair.");
        assert!(error.contains(&text), "{error}");
    }
    assert!(first("a:1=:1").unwrap_err().contains("write a host name"));
    assert!(first("a:1=[::1]:0").unwrap_err().contains("write a port"));
}

#[test]
fn ipv6_addresses_stand_in_brackets_and_are_odd_for_deeprec() {
    let cluster = ClusterSpec::parse("ps|[::1]:1,worker|b:2").unwrap();
    let found = map("[::1]:1=[2001:db8::1]:7\nb:2=s:2");
    let addresses = found.star_addresses(&cluster).unwrap();
    assert_eq!(addresses[0].1.host, "2001:db8::1");
    assert_eq!(addresses[0].1.to_string(), "[2001:db8::1]:7");
    assert_eq!(
        found.check(&cluster).odd[0].to_string(),
        "1: found `[2001:db8::1]:7`; tasks of DeepRec know no IPv6 addresses"
    );
    let ruled = EndpointMap::generate(&cluster, |_, _, port| star_port(port, 10)).unwrap();
    assert_eq!(ruled.entries()[0].value, "[::1]:11");
}

#[test]
fn checklist_22_ports() {
    for port in ["0", "-1", "x", "", "1.5", "99999999999", "65536"] {
        let error = first(&format!("a:1=s:{port}")).unwrap_err();
        assert!(error.contains("write a port from 1 to 65535"), "{error}");
    }
    assert_eq!(first("a:1=s:70000"), Ok("s:4464".to_owned()));
    let report = map("a:1=s:70000\nb:2=s:2").check(&cluster());
    assert_eq!(
        report.odd[0].to_string(),
        "1: found `s:70000`; a port ends at 65535; as DeepRec does, 4464 is taken"
    );
}

#[test]
fn checklist_22_cluster_entries_that_are_no_pair() {
    assert!(ClusterSpec::parse("ps|a").is_err());
}

#[test]
fn the_map_is_searched_where_deeprec_searches() {
    let [explicit, directory] = ["/x/my.map", "/etc/star"].map(Path::new);
    assert_eq!(search(Some(explicit), Some(directory)), explicit);
    assert_eq!(
        search(None, Some(directory)),
        Path::new("/etc/star/.endpoint_map")
    );
    assert_eq!(search(None, None), Path::new("./.endpoint_map"));
}

#[test]
fn a_generated_map_serves_its_cluster_and_reads_back() {
    let cluster = ClusterSpec::parse("ps|a:2222;b:2222,worker|a:2223").unwrap();
    let map = EndpointMap::generate(&cluster, |_, _, port| star_port(port, 10_000)).unwrap();
    let text = map.to_string();
    assert_eq!(text, "a:2222=a:12222\nb:2222=b:12222\na:2223=a:12223\n");
    assert!(self::map(&text).check(&cluster).is_clean());
    assert_eq!(pairs(&self::map(&text)), pairs(&map));
}

#[test]
fn a_rule_that_gives_no_port_or_one_twice_is_told() {
    let cluster = ClusterSpec::parse("ps|a:60000,worker|a:50000").unwrap();
    let error = EndpointMap::generate(&cluster, |_, _, port| star_port(port, 10_000)).unwrap_err();
    assert!(error.to_string().contains("gRPC port 60000 + offset 10000"));
    let error = EndpointMap::generate(&cluster, |_, _, _| Ok(7)).unwrap_err();
    assert!(error.to_string().contains("a star address of its own"));
    let error = EndpointMap::generate(&cluster, |_, _, port| {
        Ok(if port == 60_000 { 7 } else { 60_000 })
    });
    assert!(error.unwrap_err().to_string().contains("gRPC address"));
}

#[test]
fn the_port_rule_adds_the_offset() {
    assert_eq!(star_port(2222, 10_000), Ok(12_222));
    assert_eq!(star_port(55_535, 10_000), Ok(65_535));
    let error = star_port(55_536, 10_000).unwrap_err();
    assert!(error.contains("set GRPCXX_STAR_PORT_OFFSET"), "{error}");
}

#[test]
fn the_example_works_as_it_stands() {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../endpoint_map.example"
    ));
    let map = EndpointMap::read(path).unwrap();
    let spec = "ps|localhost:2222;localhost:2223,worker|localhost:2224;localhost:2225";
    let report = map.check(&ClusterSpec::parse(spec).unwrap());
    assert!(
        report.wrong.is_empty() && report.clashes.is_empty(),
        "{report:?}"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let is_plain = |line: &str| line.matches('=').count() == 1;
    assert!(text.lines().all(is_plain), "DeepRec ends at any other line");
}

#[test]
fn sizes_are_limited() {
    let long = format!("a:1={}", "s".repeat(LINE_BYTES_MAX));
    assert!(error(&long).contains("a line has at most 583 bytes"));
    let many: String = (0..=ENTRIES_MAX)
        .map(|task| format!("h{task}:1=s:1\n"))
        .collect();
    assert!(error(&many).contains("at most 131070 entries"));
    let large = vec![b'\n'; FILE_BYTES_MAX + 1];
    let error = EndpointMap::parse(Path::new("x"), &large).unwrap_err();
    assert!(
        error.to_string().starts_with("x: found more than"),
        "{error}"
    );
    assert!(
        parse(&"x\n".repeat(1000))
            .unwrap_err()
            .to_string()
            .lines()
            .count()
            <= PROBLEMS_MAX
    );
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
        if let Ok(map) = EndpointMap::parse(Path::new("x"), &bytes) {
            let _report = map.check(&cluster());
        }
    }

    #[test]
    fn lines_like_real_ones_read_back(text in "([ab#]{0,2}(:[0-9]{0,5})?=?[s ]?:?[0-9]{0,6}\r?\n){0,6}") {
        if let Ok(map) = parse(&text) {
            let again = self::map(&map.to_string());
            proptest::prop_assert_eq!(pairs(&again), pairs(&map));
            let _report = map.check(&cluster());
        }
    }
}
