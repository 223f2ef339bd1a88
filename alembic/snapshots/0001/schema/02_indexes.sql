-- Who else owns what: read at takeover and by the views only.
create index claims_owner_idx on coordinator.claims (owner) where owner is not null;
