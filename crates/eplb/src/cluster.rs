//! Ranks, the nodes they are on, their speeds, and which of them are alive.

use crate::error::Error;
use crate::wording::{counted, number};

/// Many times the ranks of any expert-parallel group. A typing error ends here, not in an
/// allocation of ranks times experts.
const LIMIT: usize = 1 << 12;

/// The ranks that experts are placed on.
///
/// Ranks are numbered node by node: with 32 ranks on 4 nodes, node 1 has ranks 8 to 15.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    nodes: usize,
    speeds: Vec<f64>,
    live: Vec<bool>,
}

impl Cluster {
    /// `ranks` equal ranks, all alive, in equal shares on `nodes` nodes.
    ///
    /// # Errors
    ///
    /// When either number is 0, or the ranks do not divide by the nodes.
    pub fn new(ranks: usize, nodes: usize) -> Result<Self, Error> {
        if ranks == 0 {
            return Err(Error::Empty {
                what: "ranks".into(),
            });
        }
        if nodes == 0 {
            return Err(Error::Empty {
                what: "nodes".into(),
            });
        }
        if ranks > LIMIT {
            return Err(Error::Limit {
                what: "ranks",
                value: ranks,
                limit: LIMIT,
            });
        }
        if !ranks.is_multiple_of(nodes) {
            return Err(Error::Setting {
                what: "nodes".into(),
                found: format!(
                    "{} cannot be divided among {}",
                    counted(ranks, "rank"),
                    counted(nodes, "node")
                ),
                remedy: "use nodes with the same number of ranks, or 1 node".into(),
            });
        }
        Ok(Self {
            nodes,
            speeds: vec![1.0; ranks],
            live: vec![true; ranks],
        })
    }

    /// Sets the speed of each rank; the time that a rank needs is its load divided by its speed.
    ///
    /// # Errors
    ///
    /// When there is not one speed per rank, or a speed is not a finite number above 0.
    pub fn with_speeds(mut self, speeds: Vec<f64>) -> Result<Self, Error> {
        self.expect_length("speeds", speeds.len())?;
        if let Some(rank) = speeds
            .iter()
            .position(|speed| !(speed.is_finite() && *speed > 0.0))
        {
            return Err(Error::Setting {
                what: format!("speed of rank {rank}"),
                found: format!("{} is not a finite number above 0", number(speeds[rank])),
                remedy: "mark a rank that does not work as not live".into(),
            });
        }
        // Loads of up to 2^53 must stay finite and nonzero after the division.
        if let Some(rank) = speeds
            .iter()
            .position(|speed| !(1e-9..=1e9).contains(speed))
        {
            return Err(Error::Setting {
                what: format!("speed of rank {rank}"),
                found: format!("{} is outside 1e-9 to 1e9", number(speeds[rank])),
                remedy: "speeds are relative: scale them to about 1".into(),
            });
        }
        self.speeds = speeds;
        Ok(self)
    }

    /// Says which ranks are alive; the slots of the others stay empty.
    ///
    /// # Errors
    ///
    /// When there is not one entry per rank, or no rank is alive.
    pub fn with_live(mut self, live: Vec<bool>) -> Result<Self, Error> {
        self.expect_length("live ranks", live.len())?;
        if !live.contains(&true) {
            return Err(Error::Empty {
                what: "live ranks".into(),
            });
        }
        self.live = live;
        Ok(self)
    }

    fn expect_length(&self, what: &str, found: usize) -> Result<(), Error> {
        if found == self.ranks() {
            return Ok(());
        }
        Err(Error::Shape {
            what: what.into(),
            expected: format!("{}, one per rank", counted(self.ranks(), "entry")),
            found: format!("{found}"),
        })
    }

    /// Number of ranks, dead ones included.
    pub fn ranks(&self) -> usize {
        self.speeds.len()
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Ranks on each node.
    pub fn ranks_per_node(&self) -> usize {
        self.ranks() / self.nodes
    }

    /// The node that a rank is on.
    pub fn node_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_node()
    }

    /// The speed of each rank.
    pub fn speeds(&self) -> &[f64] {
        &self.speeds
    }

    /// Whether each rank is alive.
    pub fn live(&self) -> &[bool] {
        &self.live
    }

    /// Number of live ranks.
    pub fn live_ranks(&self) -> usize {
        self.live.iter().filter(|live| **live).count()
    }

    /// Sum of the speeds of the live ranks.
    pub(crate) fn live_speed(&self) -> f64 {
        self.speeds
            .iter()
            .zip(&self.live)
            .filter(|(_, live)| **live)
            .map(|(speed, _)| speed)
            .sum()
    }
}
