//! How much memory and how much time of CPUs the control group of this process may have: the least
//! of what any of its ancestors allows, in version 2 and version 1.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// What a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    /// In bytes.
    Memory,
    /// What is left of the memory, in bytes.
    FreeMemory,
    /// In thousandths of the time of one CPU.
    Cpu,
}

/// Where a hierarchy of control groups is mounted that limits a resource.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The group that is seen at `point`.
    group: PathBuf,
    point: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Resource {
    fn controller(self) -> &'static str {
        match self {
            Self::Memory | Self::FreeMemory => "memory",
            Self::Cpu => "cpu",
        }
    }

    /// The limit that a group has of its own, if it has one.
    fn limit(self, folder: &Path, version: Version) -> Option<u64> {
        match (self, version) {
            (Self::Memory, Version::One) => read_number(&folder.join("memory.limit_in_bytes")),
            (Self::Memory, Version::Two) => {
                // What is above `memory.high` is slowed down until nothing moves.
                let files = ["memory.max", "memory.high"].into_iter();
                files
                    .filter_map(|file| read_number(&folder.join(file)))
                    .min()
            }
            (Self::FreeMemory, version) => {
                let limit_bytes = Self::Memory.limit(folder, version)?;
                let used_bytes = used_memory_bytes(folder, version).unwrap_or(limit_bytes);
                Some(limit_bytes.saturating_sub(used_bytes))
            }
            (Self::Cpu, Version::One) => {
                let quota_us = read_number(&folder.join("cpu.cfs_quota_us"))?;
                thousandths(quota_us, read_number(&folder.join("cpu.cfs_period_us"))?)
            }
            (Self::Cpu, Version::Two) => {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota_us, period_us) = text.trim().split_once(' ')?;
                thousandths(quota_us.parse().ok()?, period_us.parse().ok()?)
            }
        }
    }
}

/// Which part of a period may be used.
fn thousandths(quota_us: u64, period_us: u64) -> Option<u64> {
    quota_us.saturating_mul(1000).checked_div(period_us)
}

/// The memory that this process may have, if that is limited; `root` is `/` but for tests.
pub(crate) fn memory_limit_bytes(root: &Path) -> Option<u64> {
    limit_of(Resource::Memory, root)
}

/// What the control groups of this process have left of their memory, if that is limited; `root` is
/// `/` but for tests.
pub(crate) fn memory_free_bytes(root: &Path) -> Option<u64> {
    limit_of(Resource::FreeMemory, root)
}

/// What a group uses and cannot give up at once: all but the pages of files that were not used of
/// late.
fn used_memory_bytes(folder: &Path, version: Version) -> Option<u64> {
    let (used, idle) = match version {
        Version::One => ("memory.usage_in_bytes", "total_inactive_file "),
        Version::Two => ("memory.current", "inactive_file "),
    };
    let used_bytes = read_number(&folder.join(used))?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let idle = statistics.lines().find_map(|line| line.strip_prefix(idle));
    let idle_bytes = idle.and_then(|number| number.trim().parse().ok());
    Some(used_bytes.saturating_sub(idle_bytes.unwrap_or(0)))
}

/// How many CPUs this process has the time of, if its control groups limit that: 0.5 is half of
/// the time of one.
pub fn cpu_quota() -> Option<f64> {
    limit_of(Resource::Cpu, Path::new("/")).map(|thousandths| thousandths as f64 / 1000.0)
}

fn limit_of(resource: Resource, root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let groups = read("proc/self/cgroup")?;
    let mounts = read("proc/self/mountinfo")?;
    let mounts = mounts
        .lines()
        .filter_map(|line| Mount::read(line, resource));
    let limits = mounts.filter_map(|mount| {
        let group = group_of(&groups, mount.version, resource)?;
        least_limit(resource, root, &mount, group)
    });
    limits.min()
}

/// The least limit of a group and all its ancestors that can be seen.
fn least_limit(resource: Resource, root: &Path, mount: &Mount, group: &Path) -> Option<u64> {
    let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
    // A container may see its own group at the mount point, and its path from elsewhere.
    let below = group.strip_prefix(&mount.group).unwrap_or(Path::new(""));
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let below = match below.components().all(is_plain) {
        true => below,
        false => Path::new(""),
    };
    let folders = below
        .ancestors()
        .map(|ancestor| root.join(point).join(ancestor));
    let limits = folders.filter_map(|folder| resource.limit(&folder, mount.version));
    limits.min()
}

/// The number in a file; `max` and -1 are none.
fn read_number(file: &Path) -> Option<u64> {
    let limit = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit > 0).then_some(limit)
}

/// The group of this process in the hierarchy that limits a resource, as `/proc/self/cgroup` has
/// it: `0::/path` in version 2, `4:memory:/path` in version 1.
fn group_of(groups: &str, version: Version, resource: Resource) -> Option<&Path> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::One => controllers
                .split(',')
                .any(|name| name == resource.controller()),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        is_it.then(|| Path::new(path))
    })
}

impl Mount {
    /// Reads a line of `/proc/self/mountinfo`: numbers, root, mount point, options, a dash, then
    /// kind, source and options of the file system.
    fn read(line: &str, resource: Resource) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let version = match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", Some(options))
                if options
                    .split(',')
                    .any(|option| option == resource.controller()) =>
            {
                Version::One
            }
            _ => return None,
        };
        Some(Self {
            group: unescaped(group),
            point: unescaped(point),
            version,
        })
    }
}

/// A path in which the kernel wrote a blank as three octal digits.
fn unescaped(path: &str) -> PathBuf {
    PathBuf::from(path.replace(r"\040", " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system of its own, with these files.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(folder)
        }

        fn limit(&self) -> Option<u64> {
            memory_limit_bytes(self.0.path())
        }

        fn cpu(&self) -> Option<u64> {
            limit_of(Resource::Cpu, self.0.path())
        }
    }

    const MOUNT_2: &str = "30 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const MOUNT_1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
         36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn each_ancestor_of_a_group_limits_it() {
        let group = ("proc/self/cgroup", "0::/slice/pod/container\n");
        let max = |group: &'static str, limit: &'static str| {
            let path = format!("sys/fs/cgroup{group}/memory.max");
            (path, limit)
        };
        let limit = |limits: &[(String, &str)]| {
            let mut files = vec![group, ("proc/self/mountinfo", MOUNT_2)];
            files.extend(limits.iter().map(|(path, text)| (path.as_str(), *text)));
            Files::new(&files).limit()
        };
        let own = max("/slice/pod/container", "max\n");
        let pod = max("/slice/pod", "2000\n");
        let slice = max("/slice", "3000\n");
        assert_eq!(limit(std::slice::from_ref(&own)), None);
        assert_eq!(limit(&[own, pod.clone(), slice.clone()]), Some(2000));
        let lower = max("/slice/pod/container", "1000\n");
        assert_eq!(limit(&[lower, pod, slice.clone()]), Some(1000));
        assert_eq!(limit(&[slice, max("/elsewhere", "1")]), Some(3000));
        let high = ("sys/fs/cgroup/slice/pod/memory.high".to_owned(), "500");
        assert_eq!(limit(&[high]), Some(500));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn version_1_is_seen_too_where_both_are_mounted() {
        let files = Files::new(&[
            ("proc/self/cgroup", "4:memory:/a/b\n3:cpuset,cpu:/\n0::/\n"),
            ("proc/self/mountinfo", &[MOUNT_2, MOUNT_1].concat()),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712",
            ),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096000"),
        ]);
        assert_eq!(files.limit(), Some(4_096_000));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn what_is_left_of_the_memory_is_the_least_of_all_groups() {
        let free = |files: &[(&str, &str)]| memory_free_bytes(Files::new(files).0.path());
        let group = ("proc/self/cgroup", "4:memory:/a\n0::/pod/container\n");
        let two = ("proc/self/mountinfo", MOUNT_2);
        let limit = ("sys/fs/cgroup/pod/memory.max", "9000");
        assert_eq!(free(&[group, two]), None);
        assert_eq!(
            free(&[group, two, limit]),
            Some(0),
            "what is used is not told"
        );
        let used = ("sys/fs/cgroup/pod/memory.current", "5000\n");
        assert_eq!(free(&[group, two, limit, used]), Some(4000));
        let statistics = (
            "sys/fs/cgroup/pod/memory.stat",
            "anon 1\ninactive_file 500\n",
        );
        assert_eq!(free(&[group, two, limit, used, statistics]), Some(4500));
        let own = ("sys/fs/cgroup/pod/container/memory.high", "700");
        let own_used = ("sys/fs/cgroup/pod/container/memory.current", "800");
        assert_eq!(free(&[group, two, limit, used, own, own_used]), Some(0));
        let one = ("proc/self/mountinfo", MOUNT_1);
        let files = [
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "600"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "500"),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "inactive_file 1\ntotal_inactive_file 20\n",
            ),
        ];
        assert_eq!(free(&[&[group, one], &files[..]].concat()), Some(120));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn the_time_of_cpus_is_limited_by_each_ancestor_and_in_both_versions() {
        let group = ("proc/self/cgroup", "3:cpuset,cpu:/a\n0::/slice/pod\n");
        let two = ("proc/self/mountinfo", MOUNT_2);
        let limit = |max| Files::new(&[group, two, ("sys/fs/cgroup/slice/cpu.max", max)]).cpu();
        assert_eq!(limit("50000 100000\n"), Some(500));
        assert_eq!(limit("400000 100000\n"), Some(4000));
        for none in ["max 100000\n", "50000", "50000 0", "", "-1 100000"] {
            assert_eq!(limit(none), None, "{none:?}");
        }
        let files = Files::new(&[
            group,
            ("proc/self/mountinfo", &[MOUNT_2, MOUNT_1].concat()),
            ("sys/fs/cgroup/slice/pod/cpu.max", "300000 100000"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ]);
        assert_eq!(files.cpu(), Some(1500));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn a_container_sees_its_group_at_the_mount_point() {
        let mount = "30 23 0:28 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for group in [
            "0::/docker/x\n",
            "0::/\n",
            "0::/../other\n",
            "0::/docker/x/../../..\n",
        ] {
            let files = Files::new(&[
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mount),
                ("sys/fs/cgroup/memory.max", "77"),
                ("sys/memory.max", "1"),
            ]);
            assert_eq!(files.limit(), Some(77), "{group}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn odd_files_are_no_limit() {
        assert_eq!(Files::new(&[]).limit(), None);
        for mounts in [
            "",
            " - ",
            "a b c - cgroup2",
            "- - - -\n\n",
            "1 2 3 4 5 - cgroup x",
        ] {
            let files = Files::new(&[
                ("proc/self/cgroup", ":\n::\n0::\nx"),
                ("proc/self/mountinfo", mounts),
                ("memory.max", "-1"),
            ]);
            assert_eq!(files.limit(), None, "{mounts}");
        }
    }
}
