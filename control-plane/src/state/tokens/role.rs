//! Roles: four in ascending order, and the agent, which is separate.

use damper_proto::v1;

/// Role of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Receives rules and sends reports; nothing else.
    Agent,
    /// Each of these includes the permissions of those before it.
    Viewer,
    Editor,
    Operator,
    Admin,
}

impl Role {
    /// Converts from the wire; `None` if unset or unknown to this version.
    pub(crate) fn of(wire: v1::Role) -> Option<Self> {
        Some(match wire {
            v1::Role::Viewer => Self::Viewer,
            v1::Role::Editor => Self::Editor,
            v1::Role::Operator => Self::Operator,
            v1::Role::Admin => Self::Admin,
            v1::Role::Agent => Self::Agent,
            v1::Role::Unspecified => return None,
        })
    }

    pub(crate) fn wire(self) -> v1::Role {
        match self {
            Self::Viewer => v1::Role::Viewer,
            Self::Editor => v1::Role::Editor,
            Self::Operator => v1::Role::Operator,
            Self::Admin => v1::Role::Admin,
            Self::Agent => v1::Role::Agent,
        }
    }

    /// Returns true if it includes another role's permissions.
    pub(crate) fn reaches(self, other: Self) -> bool {
        self == other || self.rank().zip(other.rank()).is_some_and(|(own, needed)| own >= needed)
    }

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Agent => "agent",
        }
    }

    /// Returns its rank; `None` for an agent.
    fn rank(self) -> Option<u8> {
        match self {
            Self::Agent => None,
            Self::Viewer => Some(1),
            Self::Editor => Some(2),
            Self::Operator => Some(3),
            Self::Admin => Some(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_reaches_those_before_it_and_an_agent_only_itself() {
        let order = [Role::Viewer, Role::Editor, Role::Operator, Role::Admin];
        for (n, role) in order.into_iter().enumerate() {
            let reached = order.into_iter().filter(|other| role.reaches(*other)).count();
            assert_eq!(reached, n + 1);
            assert!(!role.reaches(Role::Agent) && !Role::Agent.reaches(role));
            assert_eq!(Role::of(role.wire()), Some(role));
        }
        assert!(Role::Agent.reaches(Role::Agent));
    }
}
