//! Connections from peers on their way to the shard that serves them.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use grpcxx_rpc::{Account, Features, ServerConnection};
use grpcxx_transport::Transport;

use crate::client::LinkMedium;
use crate::command::{AcceptedConnection, MeshMessage};
use crate::latency::CallSide;
use crate::policy::Identity;
use crate::registry::right_of_function;
use crate::shard::core::Core;
use crate::shard::leaving::Why;
use crate::shard::links::Owner;
use crate::shard::servers::{ServerLink, Unused};
use crate::shard::shares::{PeerShares, Waits};

impl<A> Core<A> {
    pub(super) fn accepted(&mut self, peer: SocketAddr, accepted: A) {
        self.incoming
            .accepted
            .push(AcceptedConnection { peer, accepted });
    }

    /// Gives each new connection to the shard with the fewest, the lowest of them on a tie.
    pub(super) fn place_accepted<T: Transport<Accepted = A>>(&mut self, transport: &mut T) {
        while let Some(accepted) = self.incoming.accepted.pop() {
            let loads = &self.shared.loads;
            let shard = (0..loads.len())
                .min_by_key(|&shard| loads[shard].load(Ordering::Relaxed))
                .unwrap_or(self.index);
            loads[shard].fetch_add(1, Ordering::Relaxed);
            if shard == self.index {
                self.adopt(accepted, transport);
            } else {
                self.mail.ship(shard, MeshMessage::Adopt(accepted));
            }
        }
    }

    pub(super) fn adopt<T: Transport<Accepted = A>>(
        &mut self,
        accepted: AcceptedConnection<A>,
        transport: &mut T,
    ) {
        let AcceptedConnection { peer, accepted } = accepted;
        if self.is_stopping() {
            return self.leave_load();
        }
        let account = Account::of(peer.ip());
        let waits = self.join(account, transport);
        let waits = match waits {
            Ok(waits) => waits,
            Err(why) => {
                self.counters().connections_refused.add(1);
                tracing::warn!(%peer, "closing a connection: {why}");
                return self.leave_load();
            }
        };
        let mut connection = ServerConnection::new(self.limits, self.announce);
        connection.land_in(self.index);
        connection.belong_to(waits.holding());
        let order = connection.first_order();
        let adopted = match transport.adopt(accepted, order) {
            Ok(link) => link,
            Err(error) => {
                self.leave_load();
                tracing::warn!(%peer, %error, "a connection could not be taken in");
                return;
            }
        };
        if self.announce.intersects(Features::MEDIA)
            && let Some(offer) = transport.offer(adopted)
        {
            connection.set_offer(offer);
        }
        let identity = Identity::at(peer);
        let incarnation = self.shared.task.incarnation();
        connection.guard(
            self.shared
                .authority
                .gate(&identity, right_of_function, incarnation),
        );
        let is_known = self.shared.authority.knows(&identity);
        if !is_known {
            self.shared.find_tasks_again();
        }
        let identity = (identity, is_known);
        let host = peer.ip().to_canonical().to_string();
        let counted = self.shared.counted_peers.join(CallSide::Server, &host);
        let place = self.call_table.place(&counted, LinkMedium::Tcp);
        let counted = (counted, place);
        let server = ServerLink::new(
            (adopted, self.now),
            peer,
            identity,
            connection,
            waits,
            counted,
        );
        match self.incoming.servers.insert(server) {
            Ok(id) => self.links.set(adopted, Owner::Server(id)),
            Err(_) => {
                self.leave_load();
                transport.close(adopted, false);
            }
        }
    }

    /// Counts a connection, for which one that nobody uses may have to give way: one of its peer if
    /// that has as many as it may, else one of whoever has most.
    fn join<T: Transport<Accepted = A>>(
        &mut self,
        account: Account,
        transport: &mut T,
    ) -> Result<Waits, String> {
        let PeerShares {
            connections,
            all_connections,
            ..
        } = self.shares;
        let Some(waits) = self.shared.accounts.join(account, &self.shares) else {
            let gave_way = self.close_unused(account, true, transport);
            let waits = gave_way.then(|| self.shared.accounts.join(account, &self.shares));
            return waits.flatten().ok_or_else(|| {
                format!(
                    "its peer has as many as are allowed, {connections}, and uses all of them; \
                     {MORE_OF_PEER}"
                )
            });
        };
        let loads = self.shared.loads.iter();
        let open: usize = loads.map(|load| load.load(Ordering::Relaxed)).sum();
        if open > all_connections && !self.make_room(account, transport) {
            return Err(format!(
                "all peers together have {}, allowed are {all_connections}; {MORE_FILES}",
                open - 1
            ));
        }
        Ok(waits)
    }

    /// Closes an unused connection of who has most connections, for one more of this account.
    /// Nobody gives way who has fewer than that, and no task of the cluster to others.
    #[cold]
    fn make_room<T: Transport<Accepted = A>>(
        &mut self,
        account: Account,
        transport: &mut T,
    ) -> bool {
        let authority = &self.shared.authority;
        let unused = self.incoming.servers.values_mut().filter_map(|server| {
            let of = server.waits.account;
            let may_give_way = of == account || !server.is_task(authority);
            (server.unused().is_some() && may_give_way).then_some(of)
        });
        match self.shared.accounts.with_most(unused, account) {
            Some(greediest) => self.close_unused(greediest, greediest == account, transport),
            None => false,
        }
    }

    /// Closes a connection of a peer, so that those which nobody uses keep no others out: first one
    /// on which nothing was ever asked, then the one that has been idle for longest; one of a task
    /// of the cluster only if there is no other, and if it may be. Returns whether there was one on
    /// this shard.
    #[cold]
    fn close_unused<T: Transport<Accepted = A>>(
        &mut self,
        account: Account,
        may_be_task: bool,
        transport: &mut T,
    ) -> bool {
        let authority = &self.shared.authority;
        let servers = self.incoming.servers.values_mut();
        let unused = servers.filter_map(|server| {
            let is_task = server.is_task(authority);
            let may_give_way = may_be_task || !is_task;
            let unused = server.unused()?;
            let order = (is_task, unused, server.since);
            (may_give_way && server.waits.account == account).then_some((order, server))
        });
        let Some(((_, unused, _), server)) = unused.min_by_key(|(order, _)| *order) else {
            return false;
        };
        server.waits.give_way();
        let (link, peer) = (server.link, server.peer);
        self.counters().unused_closed.add(1);
        tracing::warn!(
            %peer,
            "closing a connection on which nothing is asked, for another one; {MORE_OF_PEER}"
        );
        match unused {
            Unused::Ever(_) => transport.close(link, false),
            // An original may finish what it sends; ours dials again at its next call.
            Unused::Since(_) => self.depart(link, Why::Asked),
        }
        true
    }

    /// Gives those their rights who have turned out to be where a task of the cluster is now.
    #[cold]
    pub(super) fn admit_moved_tasks(&mut self, moves: u64) {
        self.moves_of_tasks = moves;
        let authority = &self.shared.authority;
        for server in self.incoming.servers.values_mut() {
            server.admit_if_known(authority);
        }
    }

    pub(super) fn leave_load(&self) {
        self.shared.loads[self.index].fetch_sub(1, Ordering::Relaxed);
    }
}

/// What to do where connections of one peer are too many.
const MORE_OF_PEER: &str =
    "to have more, raise GRPCXX_PEER_CONNECTIONS_MAX and the limit of open files (`ulimit -n`)";

/// What to do where connections of all peers are too many.
const MORE_FILES: &str = "raise the limit of open files (`ulimit -n`)";
