-- Groups whose messages wait for keys. Each row belongs to one local identity.
CREATE TABLE chat_group (
  id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  name TEXT NOT NULL,
  PRIMARY KEY (id, received_by)
);
CREATE TABLE chat_member (
  group_id TEXT NOT NULL,
  user_id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  PRIMARY KEY (group_id, user_id, received_by)
);
CREATE TABLE chat_invite (
  id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  group_id TEXT NOT NULL,
  PRIMARY KEY (id, received_by)
);
CREATE TABLE chat_key (
  id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  group_id TEXT NOT NULL,
  PRIMARY KEY (id, received_by)
);
CREATE TABLE chat_message (
  event_id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  group_id TEXT NOT NULL,
  author TEXT NOT NULL,
  words TEXT NOT NULL,
  sent_at_ms INTEGER NOT NULL,
  PRIMARY KEY (event_id, received_by),
  INDEX idx_chat_message_page (received_by, group_id, sent_at_ms DESC, event_id DESC)
);
CREATE TABLE chat_file (
  file_id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  group_id TEXT NOT NULL,
  name TEXT NOT NULL,
  total_size INTEGER NOT NULL,
  PRIMARY KEY (file_id, received_by)
);
