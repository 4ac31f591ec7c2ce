// Graphile Worker, with its local queue of VARIANT jobs, or without one (0, its default). Speaks as host.py does.
import { appendFileSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { dirname, join } from 'node:path';

const env = (name, or = '') => process.env[`BENCH_${name}`] || or;
// the packages lie in the environment that the driver made, not beside this file
const home = env('HOME');
const require = createRequire(join(home, 'node_modules', 'none.js'));
const { run, makeWorkerUtils, Logger } = require('graphile-worker');
const packageVersion = (name) => JSON.parse(readFileSync(join(home, 'node_modules', name, 'package.json'))).version;

const [connectionString, scratch, handler, profile] = [env('DSN'), env('SCRATCH'), env('HANDLER', 'noop'), env('PROFILE', 'bench')];
const [localQueue, jobs] = [Number(env('VARIANT', '0')), Number(env('JOBS', '0'))];
const tuned = Object.fromEntries(env('TUNE').split(',').map((part) => part.split('=')));
const concurrentJobs = profile === 'bench' ? Number(tuned.concurrency || (localQueue ? 24 : 24)) : 5;
const chunk = Number(tuned.chunk || 10_000);
const logger = new Logger(() => () => {});
const local = { localQueue: { size: localQueue }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

const INFO = {
  settings: (localQueue ? `localQueue size ${localQueue}, completeJobBatchDelay and failJobBatchDelay 0` : 'no local queue (its default)')
    + `, concurrentJobs ${concurrentJobs}, maxPoolSize ${concurrentJobs + 1}; bulk = addJobs, ${chunk.toLocaleString('en')} a call`,
  keeps: 'nothing: the row is deleted',
  // what was added, less what is left: it deletes what it has done
  done: "select coalesce(pg_sequence_last_value(pg_get_serial_sequence('graphile_worker._private_jobs', 'id')), 0)"
    + ' - (select count(*) from graphile_worker._private_jobs)',
  states: "select case when locked_at is null then 'waiting' else 'locked' end, count(*) from graphile_worker._private_jobs group by 1",
  no_sync: 'handlers in Node are async or block the loop: there is no other figure than the async one',
  no_crash_tuned: 'it releases the jobs of a dead worker after four hours',
};

const now = () => Date.now() / 1000;
const precise = () => (performance.timeOrigin + performance.now()) / 1000;
const leave = (name, said) => { writeFileSync(join(scratch, `${name}.draft`), said); renameSync(join(scratch, `${name}.draft`), join(scratch, name)); };
const record = (line) => appendFileSync(join(scratch, 'records'), `${line}\n`);
const reply = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const seconds = (since) => (performance.now() - since) / 1000;

let calls = 0;
const called = () => {
  calls += 1;
  if (calls === 1) { const { user, system } = process.cpuUsage(); leave('first', JSON.stringify({ time: precise(), cpu: (user + system) / 1e6 })); }
  if (calls === jobs) leave('all', String(precise()));
};
const tasks = {
  noop: called,
  record: (payload) => { const at = precise(); called(); record(`${payload.ts} ${at}`); },
  sleep: async (payload) => { called(); record(`S ${payload.i}`); await sleep(payload.sleep); record(`E ${payload.i}`); },
};

async function produce() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const payload = (i, more = {}) => ({ to: 'user@example.com', i, ...more });
  const one = (each) => utils.addJob('job', each);
  const bulk = (many) => utils.addJobs(many.map((each) => ({ identifier: 'job', payload: each })));
  const many = (n, more) => Array.from({ length: n }, (_, i) => payload(i, more));
  await utils.withPgClient((client) => client.query('select 1'));
  const commands = {
    async one({ n }) {
      const start = performance.now();
      for (const each of many(n)) await one(each);
      return { n, seconds: seconds(start) };
    },
    async bulk({ n }) {
      const payloads = many(n), start = performance.now();
      for (let at = 0; at < n; at += chunk) await bulk(payloads.slice(at, at + chunk));
      return { n, seconds: seconds(start) };
    },
    async sleepers({ n, sleep }) { await bulk(many(n, { sleep })); return { n }; },
    async pace({ groups, group, interval, cap }) {
      const begin = precise();
      let sent = 0, late = 0;
      for (let number = 0; number < groups; number += 1) {
        const wait = begin + number * interval - precise();
        if (wait > 0) await sleep(wait);
        const ts = precise();
        late = Math.max(late, ts - begin - number * interval);
        await (group === 1 ? one(payload(sent, { ts })) : bulk(Array.from({ length: group }, (_, k) => payload(sent + k, { ts }))));
        sent += group;
        if (precise() - begin > cap) break;
      }
      return { n: sent, begin, end: precise(), late };
    },
  };
  reply({ ok: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const { op, ...command } = JSON.parse(line);
    try { reply(await commands[op](command)); } catch (error) { reply({ error: String(error).slice(0, 600) }); }
  }
  await utils.release();
}

async function work() {
  const runner = await run({
    connectionString, logger, noHandleSignals: true, taskList: { job: tasks[handler] },
    preset: { worker: { concurrentJobs, maxPoolSize: concurrentJobs + 1, logger, ...(localQueue ? local : {}) } },
  });
  process.once('SIGTERM', () => runner.stop().finally(() => process.exit(0)));
  leave('ready', String(now()));
  await runner.promise;
}

const parent = process.ppid;
setInterval(() => { if (process.ppid !== parent) process.exit(1); }, 2000).unref(); // no worker outlives the driver
const command = process.argv[2];
if (command === 'info') reply({ ...INFO, versions: { node: process.versions.node, 'graphile-worker': packageVersion('graphile-worker'), pg: packageVersion('pg') } });
else if (command === 'setup') { const utils = await makeWorkerUtils({ connectionString, logger }); await utils.migrate(); await utils.release(); }
else await (command === 'producer' ? produce() : work());
