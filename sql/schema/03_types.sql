-- What settle_hard did for one claim of an exchange.
create type coordinator.hard_settled as (ord int, done int8multirange, refused bigint[], refusal text);
