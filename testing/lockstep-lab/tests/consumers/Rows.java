// Reads a binlog with mysql-binlog-connector-java, the library of Debezium, and prints each transaction that inserts into
// the table test.rows: its GTID and the first column of each row. It runs until it is killed.
//
//     java -cp LIBRARY Rows.java PORT GTID
//
// It goes on after that GTID; an empty one means the begin of the binlog.

import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.Event;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.MariadbGtidEventData;
import com.github.shyiko.mysql.binlog.event.TableMapEventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;
import com.github.shyiko.mysql.binlog.event.XidEventData;
import java.io.Serializable;

class Rows implements BinaryLogClient.EventListener {
    private String gtid = "";
    private long table = -1;
    private StringBuilder rows = new StringBuilder();

    @Override
    public void onEvent(Event event) {
        EventData data = event.getData();
        if (data instanceof MariadbGtidEventData) {
            MariadbGtidEventData begin = (MariadbGtidEventData) data;
            gtid = begin.getDomainId() + "-" + event.<com.github.shyiko.mysql.binlog.event.EventHeaderV4>getHeader()
                .getServerId() + "-" + begin.getSequence();
            rows = new StringBuilder();
        } else if (data instanceof TableMapEventData) {
            TableMapEventData map = (TableMapEventData) data;
            if (map.getDatabase().equals("test") && map.getTable().equals("rows")) {
                table = map.getTableId();
            } else if (map.getTableId() == table) {
                table = -1;
            }
        } else if (data instanceof WriteRowsEventData) {
            WriteRowsEventData written = (WriteRowsEventData) data;
            if (written.getTableId() == table) {
                for (Serializable[] row : written.getRows()) {
                    rows.append(' ').append(row[0]);
                }
            }
        } else if (data instanceof XidEventData && rows.length() > 0) {
            System.out.println(gtid + rows);
            System.out.flush();
        }
    }

    public static void main(String[] args) throws Exception {
        BinaryLogClient client = new BinaryLogClient("127.0.0.1", Integer.parseInt(args[0]), "copy", "secret");
        client.setServerId(4711);
        client.setKeepAlive(false);
        client.setGtidSet(args.length > 1 ? args[1] : "");
        client.registerEventListener(new Rows());
        client.connect();
    }
}
