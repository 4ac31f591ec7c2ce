// Enqueue in your own transaction: node enqueue.mjs cat.png

import pg from 'pg'

const client = new pg.Client({ connectionString: process.env.DATABASE_URL })
await client.connect()
const picture = process.argv[2] ?? 'cat.png'

await client.query('BEGIN')
await client.query('CREATE TABLE IF NOT EXISTS pictures (name text PRIMARY KEY)')
await client.query('INSERT INTO pictures VALUES ($1)', [picture])
const { rows } = await client.query('SELECT redrive.enqueue($1, $2, key => $3) AS id', [
  'resize',
  { picture, width: 100 },
  `resize:${picture}`,
])
await client.query('COMMIT') // now there are both: the picture, and the job
console.log(rows[0].id)
await client.end()
