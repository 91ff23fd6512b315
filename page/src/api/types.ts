// What /v1 answers, as far as the page reads it.

export type Capabilities = {
  languages: string[];
  versions: Record<string, string>;
  isolation_class: string;
  enforced_limits: Record<string, boolean>;
};

export type Problem = { code: string; message: string; hint: string | null; fault: string; retryable: boolean };
export type Denial = { kind: string; what: string; rule: string; hint: string };

export type Result = {
  status: "success" | "timeout" | "memory_exceeded" | "error";
  stdout: string;
  stderr: string;
  exit_code: number;
  signal: number | null;
  duration: number;
  queued: number;
  stdout_truncated: boolean;
  stderr_truncated: boolean;
  usage: { cpu_time: number; peak_memory_bytes: number };
  enforced: Record<string, string | null>;
  outputs: Bundle[];
  denials: Denial[];
  files: Record<string, string>;
  error?: Problem;
};

/** One thing that was shown, in several forms by MIME type. Everything in it was said by a guest. */
export type Bundle = Record<string, unknown>;

export type DoctorRow = {
  name: string;
  status: string;
  mechanism: string | null;
  proof: string | null;
  remedy: string | null;
};
export type Report = { default_available: boolean; rows: DoctorRow[] };

export type Step = {
  time: number;
  outcomes: Record<string, number>;
  p50: number | null;
  p95: number | null;
  memory: number;
  running: number;
  waiting: number;
  resident: number;
};
export type History = { began: number; step: number; sandboxes: number; queue: number; steps: Step[] };

export type Sandbox = { id: string; created: number; expires: number; metadata: Record<string, string> };
export type Entry = { name: string; path: string; is_dir: boolean; is_file: boolean; size: number };
export type Change = { path: string; kind: "created" | "modified" | "deleted"; size: number; entry: string };
export type Process = { pid: number; command: string; cwd: string; is_running: boolean; exit_code: number | null };
export type Session = { id: string; language: string };
/** Of a sandbox to the outside, or one that was refused. */
export type Connection = { time: number; host: string; port: number; bytes_sent: number; bytes_received: number; rule: string; is_allowed: boolean };
export type Port = { port: number; host_port: number; url: string };
export type Display = { mime: Bundle; is_result: boolean; display_id: string | null; is_update: boolean };
export type Cell = {
  status: string;
  stdout: string;
  stderr: string;
  outputs: Display[];
  value: string | null;
  error: { name?: string; message: string; traceback?: string; hint?: string | null } | null;
  execution_count: number;
  duration: number;
};
