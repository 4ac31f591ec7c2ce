// npm install && DATABASE_URL=postgresql://localhost/shop node main.mjs

import pg from 'pg'
import { Worker } from './worker.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, application_name: 'jobs in node' })
pool.on('error', (error) => console.error(`an idle connection broke: ${error.message}`))

const worker = new Worker(pool, {
  async resize(payload, { signal }) {
    signal.throwIfAborted()
    console.log(`resized ${payload.picture}`)
    return { width: payload.width }
  },
})

for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => worker.stop())
await worker.run()
await pool.end()
